/* SPDX-License-Identifier: Apache-2.0
 *
 * What commands do beyond their summaries, and the environment variables: text for the reference.
 *
 * A row is a command's name and its paragraphs, each on one line; a line that starts with "- " is
 * an item of a list. The row without a name is about all commands.
 */
#include "cli/reference.h"

#include <string.h>

/* clang-format off */
static const struct {
    const char *name;
    const char *text;
} details[] = {
    { "",
      "Data goes to stdout, diagnostics go to stderr. Options are long: `--name value` or `--name=value`, anywhere among the operands. What follows the last semicolon of an option's text is its default.\n"
      "Every command takes `--json` and then prints one JSON object. An error is then also an object on stdout: `{\"error\":{\"status\":...,\"message\":...}}`. The objects conform to JSON Schemas, in the folder `tests/schema` of the source.\n"
      "The store is at the first of these places: `--store`, `FFA_CACHE_DIR`, `XDG_CACHE_HOME/ffa`, `HOME/.cache/ffa`, `TMPDIR/ffa-UID`, memory only. `ffa cache path --explain` says which was taken and why.\n" },
    { "help",
      "`--format markdown` is the page `docs/command.md`. The man pages and the completion scripts are made by the build and installed with the command. `--json` lists all commands with their options.\n" },
    { "doctor",
      "The first thing in a bug report. It says where NVRTC and NCCL were found, checks the store and every bundle in use, and exits with 4 if the store is not sound.\n" },
    { "mask show",
      "A mask is named by a text such as `varlen-causal:1000,3000,96`, or by a file: `@mask.json`. The page on masks lists all forms.\n"
      "Masks are made of masks: `concat(MASK;MASK...)` puts them behind each other, `union(MASK;MASK...)` attends what any of them does, `crop(MASK;q=BEGIN:END,k=BEGIN:END)` cuts a part out, `shift(MASK;q=N,k=N,size=QxK)` moves the cells. A shell needs quotes around them.\n" },
    { "mask check",
      "Cells that several slices cover are attended once; the command warns of them and gives an example.\n" },
    { "plan",
      "Shows the dispatch, the load of every rank, and the stages of one rank, with times by a model: those of the slowest rank, or of `--rank`. The model's links are those of H200s with NVLink and 400 Gb/s between nodes. Nothing is measured.\n"
      "Unless `--algorithm` names one, chunks are dispatched by affinity, by min-heap and by zigzag with two chunks a rank, and the one that the model finds faster is taken, as `ffa run` and passes of PyTorch do. The page on context parallelism says what each does.\n" },
    { "simulate",
      "The plans are those a program gets, of all ranks. Computing costs by the cells of the blocks visited. A transfer costs a latency and its bytes over a bandwidth, with one port in and one port out of a rank for each of two classes of links: inside a node and between nodes. A rank that serves many ranks is waited for.\n"
      "Beside the plan stand all-gather, ring, zigzag and Ulysses, on the same mask and at the same prices. `relayed` is the plan with keys that cross the network once a node, as the transport `relay` does it.\n"
      "With `--calibration` rates are those that `bench_parallel --calibrate` measured on the GPUs of a host; what other options say wins.\n" },
    { "tune explain",
      "Needs no GPU. The candidates are the kernels of the spec, with tiles of one document each or across documents, and split over their keys; for the backward pass, the parts of a kv head's query heads and the waves of an L2 group. `*` is what a plan gets. Times are those of the model that decides: microseconds where the cost table knows, else its own units, which compare within one pass; a split is compared with whole tiles by a model of its own.\n" },
    { "tune table",
      "The page on choosing says how tables are looked up. What it prints can be given back with `--cost-tables`.\n" },
    { "compile",
      "Needs no GPU. `layer` says where the kernel was found: `table` (the memory of this process), `store`, `bundle` or `compiled`.\n"
      "`--emit` writes the cubin, the PTX or the compiler's log. `--print` prints an nvcc command that compiles the same kernel from the folder of templates.\n"
      "With `FFA_JIT=never` nothing is compiled: a kernel that is in no layer is exit status 5.\n" },
    { "explain",
      "Says what each setting resolved to and who set it, the key, and which layer answers. Where none does, it shows the entry of the store that is nearest, and the lines of the record in which the two differ. A template that was edited shows as a line `text.`, another architecture as `arch`. A line `failed` says when and why the kernel last failed to compile, if it is not tried again for a while. Compiles and writes nothing.\n" },
    { "warm",
      "The set is one of these: a preset (`training`, `inference`, `all`, or a model of the table `cache/models.json`); what specs need (`--spec`, as often as there are specs); a manifest (a JSON file, or `-` for stdin); what a job missed (`--from-misses STORE` takes the misses noted in that store). A manifest names specs, or templates, with values, and means all their combinations. Needs no GPU.\n"
      "A spec is what a program says of its attention (`ffa_attention_spec`), as items with commas between them: `head_dim=128` or `192:128`, `dtype=bf16`, `pack=8`, `heads=64:8`, `tile=128x128`, `backward_tile=64x128`, `split` or `split=auto`, and `backward`, `deterministic`, `softcap`, `max_logits`, `out_fp32`, `grad_fp32`, `staged`, `parallel`, `debug`. It means all kernels that the program may look up for it, by every cost table that the library finds, or with `--device MODEL` by that of one device model. `--list` says which.\n"
      "What the store or a bundle answers is a hit and opens no NVRTC, so an interrupted set goes on where it stopped. The rest is compiled by worker processes, each under a time-out for each kernel (`--timeout`) and a memory limit (`--mem-per-job`). A worker that crashes, hangs, runs out of memory or is killed costs one kernel, which is reported; a new worker takes over. A template that does not compile ends the session unless `--keep-going` is given.\n"
      "`--dry-run` lists what would be built, with an estimate from the compile times in the store. `--json` prints one object, `--jsonl` one an event. Progress goes to stderr: a bar on a terminal, otherwise a line every ten seconds. With `FFA_JIT=never` the command proves that a store covers the set: exit status 0, or 5 and a list of what is missing, which is also noted in the store as missed.\n"
      "`--shard I/N` takes one of N shards of the set, which have about as much to compile each; together they are the set. `--shard auto` takes the shard of this task of a launch, by `RANK` and `WORLD_SIZE`, `OMPI_COMM_WORLD_RANK` and `_SIZE`, `PMI_RANK` and `_SIZE`, or `SLURM_PROCID` and `SLURM_NTASKS`: the first pair that is set, as launchers are inside one another in this order. Without `--shard` all of the set is taken: a batch script has its launcher's variables, too.\n" },
    { "tune run",
      "SPEC is as for `ffa warm --spec`: head_dim, dtype (default bf16), heads, `backward` and `deterministic`; no tiles and no other features. Every tile that the kernel can have is compiled by worker processes. Those that spill registers are left out, and those whose results are not those of an fp64 oracle. The others race beside what the library chooses now, which is called the baseline: lap by lap, in a turning order, with cold buffers, the slower half leaving after each heat, until all masks are timed or `--budget` is spent. Nothing else should run on the GPU meanwhile.\n"
      "With `backward` the orders of the backward pass race after that, in a session of their own: all that the library chooses among, each checked against the oracle, beside the order that it chooses now. Each of both has half of `--budget`, and the second one what the first leaves. Where the file has the forward session already, and without `--resume`, only the backward one is begun; with `--backward-only` there is no other. `--tile` is of forward kernels.\n"
      "All samples are in the session file at once. A session that was interrupted or killed goes on with `--resume`, where it was. A kernel that traps or hangs takes the GPU from the process; the command then goes on without that kernel, in a new one. A kernel during which two processes in a row ended is left out.\n"
      "Of several specs each has a session in the file, one after the other, and a share of `--budget`; with `--resume` those that were not begun are begun. `--devices` measures on several GPUs at once: a process for each times a share of the tiles and orders, with all masks, in a file of its own beside `--session`, and at the end all of them are added to `--session`. What could not be added, and without `--resume` a spec that `--session` has already, is refused before anything is measured. (`--part` and `--join` are what such a process is told.)\n"
      "Of several specs one may fail, and the others go on; the exit status is that of the first that did, and `--json` prints one object with the others' report and what failed.\n"
      "`--compile-only` compiles the tiles of the specs into the store, and measures nothing. With `--device MODEL`, a device model that has a cost table, it needs no GPU: where the store is taken along, the machine with the GPU finds all kernels there, and only checks and races.\n"
      "At the end it prints what `ffa tune show` does. `ffa tune export` makes the table.\n" },
    { "tune show",
      "For each mask: the time of the baseline, that of the kernel which the fitted costs choose, its gain and what that may be off by (two standard errors). For each kernel that was timed on all masks: its costs, how far the model is off in the mean, and its mean time as a share of the baseline's. A head_dim is published, that is, gets other kernels in the table, where its gain over all masks is above the noise.\n"
      "Of backward sessions, for each mask: the time of the baseline, the order that the library chooses, the best one that raced to the end, its gain and what that may be off by, and the same of the order that the fitted constants choose, which follow. `2x1+6` is an order of 2 parts of each kv head's query heads, in L2 groups of one wave of work items, which leaves 6 kv heads whole; `2x1u` is without the lockstep that the mask's tiles would go in. `--json` has all orders that were timed.\n" },
    { "tune merge",
      "All or nothing; a session that is in OUT already stays as it is. Sessions must be of one device model, of the same templates, and must have begun with the same cost table. The table that fits them is the same in whatever order they are added.\n" },
    { "tune export",
      "The table is FOLDER/costs-DIGEST.json, by the digest that ranks compare; `--cost-tables FOLDER` uses it. There is none where nothing was published. The samples are FOLDER/sessions-DIGEST.samples: JSON, from which the table can be fitted again.\n" },
    { "run",
      "Inputs are made up from `--seed`, or read from NumPy files. Outputs are filled with NaN before the call.\n"
      "`--check` compares with an fp64 oracle that evaluates the mask cell by cell and shares no code with either backend. It exits with 1 beyond the tolerance: 5e-3 relative in bf16, 7e-4 in fp16, and for a row of one head 4 times that. Above 1e8 cells a sample of rows is compared. `--time` times calls after a warm-up; a short call is sampled in groups, back to back.\n"
      "`--backward` also runs the backward pass, on a made-up dout unless `--dout` is given. `--check` then compares dq, dk, dv and dsink: 8e-3 relative in bf16, 1.2e-3 in fp16, and 1.7e-8 more for each key where rows have many; a head within twice that, a row or key within 4 times that. Where rows are sampled, so are keys, and dsink is not compared. With `--deterministic` the bits of a second call are compared, too.\n"
      "`--ranks N` runs the case on N ranks, each with its own plan and rows: threads of this process, over the loopback transport on the CPU, whose times say nothing about several machines, or with `--backend cuda` on a GPU each, or all on one where there are fewer. `--ranks-per-node`, `--stages` and `--moves` choose what is planned, `--delay` how much transfers on the CPU overtake one another.\n"
      "With `--rendezvous DIR` (or `FFA_RENDEZVOUS`) this process is one rank of several on this host, with a GPU each, which meet in that folder. Which one, `RANK` and `WORLD_SIZE` of torchrun, those of mpirun or srun, or `--rank` and `--ranks` say; the GPU is that of the local rank, modulo their number. Rank 0 checks and prints, the others print errors only, and all have one exit status. A rank that dies, fails, or keeps another one waiting for `--timeout` seconds ends all.\n"
      "`--transport` says what moves rows between GPUs. `pull`: copy engines, where every GPU reaches the memory of every other one. `exchange`: NCCL, with one rank a GPU; passes leave some SMs to it. `relay`: NCCL between nodes of `--ranks-per-node` GPUs, which each row crosses once a node, and copy engines inside them. `auto`, which is the default, pulls where it can. NCCL is what the process has loaded, or `--nccl FILE` (`FFA_NCCL`), or where the loader and Python wheels have it.\n"
      "Files are .npy, versions 1 and 2, C order, little endian, [tokens][heads][head_dim]; lse is [tokens][heads] in float32. What a file holds depends on `--dtype`:\n"
      "- bf16: uint16, the bits; float32 is rounded, which is reported\n"
      "- fp16: float16; float32 is rounded, which is reported\n"
      "- fp32 and fp64, on the CPU: float32 and float64\n"
      "FLOPs are 2 x attended cells x query heads x (head_dim + head_dim_v); of the backward pass, 2 x cells x heads x (3 x head_dim + 2 x head_dim_v).\n" },
    { "cache show",
      "KEY may be the first digits of a key; all entries that start with it are shown. `--cubin` takes the kernel out.\n" },
    { "cache stats",
      "Also prints what the contexts that used the store counted: hits by layer, misses, compiles, failures, the milliseconds spent compiling, and those that hits saved. A context adds its counts when it closes, if it may write and no other process holds the store. A job that was killed is not among them.\n" },
    { "cache verify",
      "`--rebuild N%` also compiles a sample of the entries again, chosen by `--seed`, and compares the cubins byte for byte. The same NVRTC gives the same bytes; entries of another NVRTC or another template text are counted and skipped. Exit status 4: a bad or different entry. Exit status 1: an entry that does not compile.\n" },
    { "cache misses",
      "Contexts that may not compile (`FFA_JIT=never`) note what they miss. `ffa warm --from-misses` compiles it.\n" },
    { "cache failures",
      "A kernel that failed to compile is not tried again for five minutes.\n" },
    { "cache gc",
      "`--older-than` removes what was not used for that long, a number with a unit; uses are noted to a day. `--max-size` then removes the kernels longest unused until the rest fits. A store also keeps itself below a cap of 1 GiB.\n" },
    { "bundle export",
      "Writes the whole store, or what `--template`, `--arch` and `--toolchain` choose. Exit status 4: bad entries were left out. Exit status 5: there was no kernel.\n" },
    { "bundle import",
      "What is in the store stays. The manifest of a bundle is checked first, and nothing is imported from one that was changed, or whose digest is not that of `--digest`. A bundle for another version of libffa, whose kernels would never be found, is refused, too, unless `--any-version` is given. Exit status 4: such a bundle, bad entries, or the store has another cubin for the same kernel. Exit status 5: no kernel is one that `--template`, `--arch` and `--toolchain` choose.\n" },
    { "bundle merge",
      "Merges bundles, or stores such as the shards of a job, all or nothing. Exit status 4: bad entries or conflicts.\n" },
    { "bundle diff",
      "Lists what only A has (`-`), what only B has (`+`), and what both have with different cubins (`!`). Exit status 1: not the same. Exit status 4: different cubins.\n" },
    { "bundle inspect",
      "The manifest lists the SHA-256 of every cubin. Its own SHA-256 is the digest, so the same kernels have the same name.\n" },
    { "bundle verify",
      "Exit status 4: a cubin, the file, its name or `--digest` does not match, or the bundle is for another version of libffa: it says so, and not all of its kernels are of this version's templates. `--any-version` takes it all the same.\n" },
};
/* clang-format on */

static const struct cli_variable variables[] = {
    { "FFA_CACHE_DIR", "The folder of the store." },
    { "FFA_BUNDLES", "Bundles to look into after the store, separated by colons." },
    { "FFA_COST_TABLES", "A cost table, or a folder of them; `none`: built-in ones only." },
    { "FFA_JIT", "`never`: compile nothing. `auto`: compile what is missing." },
    { "XDG_CACHE_HOME, HOME, TMPDIR", "Where the store is, if nothing else says so." },
    { "FFA_RENDEZVOUS", "The folder where the processes of `ffa run` meet, as `--rendezvous`." },
    { "FFA_NCCL", "The NCCL to open, as `--nccl`." },
    { "RANK, WORLD_SIZE, LOCAL_RANK",
      "Under torchrun: the rank of this process of `ffa run --rendezvous`, how many there are, and "
      "the rank on this host; the first two also the shard that `ffa warm --shard auto` takes." },
    { "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK",
      "The same under Open MPI." },
    { "PMI_RANK, PMI_SIZE, MPI_LOCALRANKID", "The same under mpirun of MPICH and Intel MPI." },
    { "SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID", "The same under Slurm." },
    { "TERM, NO_COLOR", "Whether progress is drawn as a bar, and in colour." },
};

const char *cli_details(const char *name)
{
    for (int i = 0; i < CLI_COUNT(details); i++)
        if (strcmp(details[i].name, name) == 0)
            return details[i].text;
    return NULL;
}

const struct cli_variable *cli_variables(int *count)
{
    *count = CLI_COUNT(variables);
    return variables;
}
