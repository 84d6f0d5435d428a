-- The kernel store. application_id 'ffak'; user_version is the schema's version.
-- Running this on a store of an older version adds what that lacks, and changes nothing else.
PRAGMA application_id = 0x6666616b;
PRAGMA user_version = 2;

CREATE TABLE IF NOT EXISTS meta (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) STRICT;
-- 'created_s', sums of contexts' counters 'count_...'; in a bundle 'manifest' and its SHA-256,
-- 'manifest_sha256', too, and of the library that exported it 'library_version' and, where all kernels are of its
-- templates, 'templates_digest'.

-- Cubins, one row for each distinct content.
CREATE TABLE IF NOT EXISTS blob (
    id     INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,     -- XXH3-128 of data, canonical, hexadecimal
    bytes  INTEGER NOT NULL,         -- length of data
    data   BLOB NOT NULL
) STRICT;

-- What was compiled. A row is (key, toolchain); `seal` covers all that never changes in it.
CREATE TABLE IF NOT EXISTS kernel (
    id           INTEGER PRIMARY KEY,
    key          TEXT NOT NULL,      -- XXH3-128 of the request, canonical, hexadecimal
    toolchain    TEXT NOT NULL,      -- "nvrtc 13.0 <build>"
    blob         INTEGER NOT NULL REFERENCES blob (id),
    seal         TEXT NOT NULL,      -- XXH3-128 of the columns below, key, toolchain and digest
    template     TEXT NOT NULL,
    arch         TEXT NOT NULL,
    record       TEXT NOT NULL,      -- the request, readable: name=value lines
    registers    INTEGER NOT NULL,
    shared_bytes INTEGER NOT NULL,
    spill_bytes  INTEGER NOT NULL,
    advisories   INTEGER NOT NULL,
    threads      INTEGER NOT NULL,
    compile_us   INTEGER NOT NULL,
    created_s    INTEGER NOT NULL,   -- Unix time
    used_s       INTEGER NOT NULL,   -- Unix time of the last use, to a day
    UNIQUE (key, toolchain)
) STRICT;
CREATE INDEX IF NOT EXISTS kernel_blob ON kernel (blob);
CREATE INDEX IF NOT EXISTS kernel_used ON kernel (used_s, id);

-- A blob leaves with its last kernel.
CREATE TRIGGER IF NOT EXISTS kernel_gone AFTER DELETE ON kernel
BEGIN
    DELETE FROM blob WHERE id = old.blob AND NOT EXISTS (SELECT 1 FROM kernel WHERE blob = old.blob);
END;

-- Version 2. Compiles that failed, each kept from being tried again for a while.
CREATE TABLE IF NOT EXISTS failure (
    id        INTEGER PRIMARY KEY,
    key       TEXT NOT NULL,
    toolchain TEXT NOT NULL,
    template  TEXT NOT NULL,
    arch      TEXT NOT NULL,
    record    TEXT NOT NULL,
    message   TEXT NOT NULL,
    log       TEXT NOT NULL,         -- the compiler's, at most 64 KiB of it
    failed_s  INTEGER NOT NULL,      -- Unix time
    UNIQUE (key, toolchain)
) STRICT;

-- What was asked for and found nowhere, by contexts that may not compile or were told to note it.
CREATE TABLE IF NOT EXISTS miss (
    id       INTEGER PRIMARY KEY,
    key      TEXT NOT NULL UNIQUE,
    template TEXT NOT NULL,
    arch     TEXT NOT NULL,
    record   TEXT NOT NULL,          -- what to build
    noted    INTEGER NOT NULL,       -- how often, at most once an hour
    first_s  INTEGER NOT NULL,       -- Unix times
    last_s   INTEGER NOT NULL
) STRICT;
