# shellcheck shell=sh
t --version
