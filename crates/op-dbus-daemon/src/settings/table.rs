//! The table of settings: config file, environment, flags, documentation and `config show` all
//! follow from it.

use super::choices::{ARENAS, AUTO_ON_OFF, CPU_ISAS, FALLBACKS, LEVELS};
use super::kind::{Kind, count, count_or};
use super::row::{Group, Row, Scope};
use super::types::{CpuEngine, Offload, Precision, Provider};

/// The row of a key.
pub fn row(key: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.key == key)
}

/// All settings, in the order in which they are shown.
pub const ROWS: &[Row] = &[
    Row {
        key: "vector_level",
        kind: Kind::Choice(LEVELS),
        default: "medium",
        doc: "Which model answers: `low` is the fastest (paraphrase-MiniLM-L3-v2, 384 \
              dimensions), `medium` the balance (all-MiniLM-L6-v2, 384), `high` the best \
              (all-mpnet-base-v2, 768). `none` starts the service without embedding. Vectors of \
              different levels must not be compared.",
        scope: Scope::Runtime,
        ..Row::of(Group::Model)
    },
    Row {
        key: "model",
        kind: Kind::Model,
        doc: "An imported model, by its name in the store, served in place of the level's.",
        ..Row::of(Group::Model)
    },
    Row {
        key: "expect_dimensions",
        kind: count_or("any", 1, 65_536),
        default: "any",
        unit: "dimensions",
        doc: "The service refuses to start with a model that has other dimensions, and a call that \
              names one with the option `level`: for an index that has been built for one size.",
        ..Row::of(Group::Model)
    },
    Row {
        key: "execution_provider",
        kind: Kind::Choice(Provider::CHOICES),
        default: "cpu",
        doc: "What computes the vectors; `auto` is `cuda` where that works, else the CPU, and tries no \
              other. The property `ExecutionProvider` tells which one verifiably runs.",
        scope: Scope::Runtime,
        ..Row::of(Group::Provider)
    },
    Row {
        key: "fallback",
        kind: Kind::Choices(FALLBACKS),
        default: "cpu",
        doc: "What is tried, in order, when the provider does not work. `none` is strict: the \
              service then reports the failure instead of running on something else. `auto` has its \
              own order, and this has no effect with it.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "provider_retry_s",
        kind: count(0, 31_536_000),
        default: "300",
        unit: "seconds",
        doc: "Seconds between two tries of the providers that come before the one that computes, for each \
              model that is loaded; one that works takes over. With 0 they are tried at a reload only. \
              While none works at all, or the model is missing, a try comes every 30 seconds where this is \
              longer, but not with 0.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "gpu_device",
        kind: Kind::Devices,
        default: "0",
        doc: "Numbers of the provider's devices that are used. A provider that runs in its place has \
              other devices: it uses its first one, or with `all` each of them.",
        scope: Scope::Runtime,
        ..Row::of(Group::Provider)
    },
    Row {
        key: "precision",
        kind: Kind::Choice(Precision::CHOICES),
        default: "auto",
        doc: "The number format that models compute in. `auto` is `bf16` where the CPU computes \
              in it, `f16` on `cuda`, else `f32`. `int8` is the coarsest and mostly the fastest, and only \
              taken when it is named. The native engine has `f32`, `bf16` and `int8` on every CPU; \
              without instructions of its own `bf16` is no faster than `f32`, and `int8` gains \
              little where there is neither AVX2 nor Arm's dot products. ONNX Runtime, and so every accelerator, \
              has `f32` and `f16`; `openvino`, on a CPU that has it, and `tensorrt` have `bf16` as well. With \
              `f16` the native engine computes as with `auto`, and the log says so.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "runtime",
        kind: Kind::Path { optional: true },
        doc: "The ONNX Runtime library, for `cpu_engine = ort` and for every accelerator. When it is not set, those \
              that `op-dbus runtime pull` has put beside the models are used. `ORT_DYLIB_PATH`, \
              if it is an absolute path, counts as its default, except in the system service.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "cpu_engine",
        kind: Kind::Choice(CpuEngine::CHOICES),
        default: "native",
        doc: "What computes on the CPU. `native` is our own code: it pads nothing and needs no \
              library. `ort` is ONNX Runtime: for an ONNX file of your own, and to compare. `sim` \
              needs no model either: the same text always gives the same vector, but vectors \
              carry no meaning; it is there to try out clients.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "cpu_isa",
        kind: Kind::Choice(CPU_ISAS),
        default: "auto",
        doc: "The instruction set that the native engine uses. `auto` is the best that the CPU \
              has. A name forces one, to compare or to look for a fault; where the CPU does not \
              have it, the model is not loaded, and the message lists those that it has.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "gpu_memory_limit",
        kind: Kind::Bytes { min: 1 << 20, word: Some("none") },
        default: "none",
        doc: "How much memory of a device each worker may take for the model's weights and its batches; what \
              libraries take beside that is not counted. `cuda` and `migraphx` have such a limit, which \
              `options` of their tables may say instead; with others it has no effect, and the log says so.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "arena_strategy",
        kind: Kind::Choice(ARENAS),
        default: "auto",
        doc: "How the memory taken from a device grows: to the next power of two, or by what a batch \
              asks for, which takes less. `auto` leaves it to the provider. It reaches the providers \
              that `gpu_memory_limit` does.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "io_binding",
        kind: Kind::Choice(AUTO_ON_OFF),
        default: "auto",
        doc: "Whether ONNX Runtime keeps buffers for inputs and outputs, one set for each shape of \
              batch, in memory that the device reads by itself where the provider has such. `auto` \
              does where the device has memory of its own: `cuda`, `tensorrt`, `migraphx`, \
              `webgpu`. Batches are rounded up to few shapes there, of which as many are computed \
              once at the load as 5 seconds are enough for. It has no effect on the native engine \
              and on graphs of your own.",
        ..Row::of(Group::Provider)
    },
    Row {
        key: "model_dir",
        kind: Kind::Path { optional: false },
        default: "/var/lib/op-dbus/models",
        doc: "The model store: one folder for each model.",
        ..Row::of(Group::Places)
    },
    Row {
        key: "cache_dir",
        kind: Kind::Path { optional: false },
        default: "/var/cache/op-dbus",
        doc: "Files that can be made again, in a folder for each model; the dozen models used last are kept, with a dozen \
              packed weights and graphs each, and what was not used for 180 days goes from the packages' own folder (`tmpfiles.d`). The folder that systemd names in `CACHE_DIRECTORY` counts as the default.",
        ..Row::of(Group::Places)
    },
    Row {
        key: "state_file",
        kind: Kind::Path { optional: false },
        default: "/var/lib/op-dbus/state.json",
        doc: "Where settings changed while the service runs are kept. Read at the start \
              only: a change takes a restart.",
        ..Row::of(Group::Places)
    },
    Row {
        key: "config",
        kind: Kind::Path { optional: false },
        default: "/etc/op-dbus/config.toml",
        doc: "The main configuration file. When it is named, it must exist, and it is read in \
              place of `/etc/op-dbus/config.toml` and of the drop-ins in `/etc/op-dbus/conf.d`.",
        scope: Scope::Outside,
        ..Row::of(Group::Places)
    },
    Row {
        key: "bus",
        kind: Kind::Bus,
        default: "system",
        doc: "The bus on which the service is found. Read at the start only: a change takes a \
              restart.",
        ..Row::of(Group::Places)
    },
    Row {
        key: "batch_tokens_max",
        kind: count_or("auto", 16, 1 << 20),
        default: "auto",
        unit: "tokens",
        doc: "The most tokens that one thread computes in one batch: a worker of the native \
              engine gets this many for each of its threads. ONNX Runtime gets this many for all \
              of them together, padding included. A single text that is longer makes a batch of \
              its own. With `auto` the native engine measures how this machine computes a model \
              best, for a second or two when it first loads it, and keeps the answer in \
              `cache_dir`; with a number it measures nothing. For ONNX Runtime `auto` is 512 \
              on the CPU, 8192 on an accelerator, and up to 32768 on one that is faster with them.",
        ..Row::of(Group::Batching)
    },
    Row {
        key: "batch_delay_us_max",
        kind: count(0, 1_000_000),
        default: "0",
        unit: "microseconds",
        doc: "How long a text may wait for others to share its batch while a worker is idle. \
              With 0 batches form only while all workers are busy, which costs no latency.",
        ..Row::of(Group::Batching)
    },
    Row {
        key: "threads",
        kind: count_or("auto", 1, 1024),
        default: "auto",
        unit: "threads",
        doc: "Threads that each worker of the CPU computes with, no more than there are CPUs; a worker of \
              an accelerator has one. `auto` shares them evenly between the workers. Threads of the \
              native engine that take up all CPUs are kept on one each.",
        ..Row::of(Group::Batching)
    },
    Row {
        key: "workers_per_device",
        kind: count_or("auto", 1, 256),
        default: "auto",
        unit: "processes",
        doc: "Worker processes for each device; all CPUs together are one device. Every worker \
              holds the model in memory. `auto` is one, whose threads share it; on the CPU with \
              `ort` or `sim` it is one for each CPU, eight at most.",
        ..Row::of(Group::Batching)
    },
    Row {
        key: "offload",
        kind: Kind::Choice(Offload::CHOICES),
        default: "off",
        doc: "Whether the CPU computes beside an accelerator. With `auto` each batch goes where it \
              will be done first, by what batches cost on either and what waits; each reply \
              names what computed it. Where the accelerator is lost and nothing takes its place the \
              CPU goes on alone, also where `fallback` is `none`. Of no effect where the CPU serves \
              alone.",
        ..Row::of(Group::Batching)
    },
    Row {
        key: "queue_tokens_max",
        kind: count(1, 1 << 32),
        default: "8388608",
        unit: "tokens",
        doc: "The most tokens of all callers together that may wait or be computed, by the models of all levels. \
              Beyond it calls are refused at once with `Overloaded`. Until it is tokenized a text counts as a \
              token for each byte, but as no more than the model reads unless it is embedded in chunks, and never \
              as less than one for each 32 bytes.",
        ..Row::of(Group::Admission)
    },
    Row {
        key: "quota_tokens",
        kind: count(1, 1 << 32),
        default: "4194304",
        unit: "tokens",
        doc: "The most tokens of one user that may wait or be computed, by the models of all levels; beside others \
              what `queue_tokens_max` leaves free. Beyond it calls are refused at once with `QuotaExceeded`. \
              They are counted as for `queue_tokens_max`.",
        ..Row::of(Group::Admission)
    },
    Row {
        key: "source_silence_s",
        kind: count(1, 86_400),
        default: "60",
        unit: "seconds",
        doc: "How long a pipe or a file system that `EmbedFromFd`, or a job, reads from may be silent \
              while its texts are wanted; then the call ends with `DeadlineExceeded`. Its place is free \
              then, but for a file's, which is once its file system answers. Counts for calls that \
              begin after the next reload.",
        ..Row::of(Group::Admission)
    },
    Row {
        key: "cache_bytes",
        kind: Kind::Bytes { min: 0, word: None },
        default: "0",
        doc: "Memory for finished vectors of texts that come again; 0 keeps none. A user gets back \
              only what their own calls have computed, and where the room is used up, the user who \
              has the most of it loses what was asked for the longest ago. Nothing of a text is \
              kept, and nothing is written to a disk. A change counts at the next reload.",
        ..Row::of(Group::Admission)
    },
    Row {
        key: "load_timeout_s",
        kind: count(1, 3600),
        default: "120",
        unit: "seconds",
        doc: "How long a worker may take to load its model before it is given up.",
        ..Row::of(Group::Life)
    },
    Row {
        key: "batch_timeout_s",
        kind: count(1, 3600),
        default: "60",
        unit: "seconds",
        doc: "How long a worker may take for one batch. One that takes longer hangs: it is ended and \
              replaced, and its batch is computed again. On a device that is slow by nature batches \
              may have to be smaller (`batch_tokens_max`).",
        ..Row::of(Group::Life)
    },
    Row {
        key: "worker_memory_max",
        kind: Kind::Bytes { min: 16 << 20, word: Some("auto") },
        default: "auto",
        doc: "The most memory, not counting mapped files, that a worker may ask for; beyond it the \
              worker ends, and its batch is computed again. `auto`: none for accelerators. For others 3/4 of the \
              memory of machine, unit or container is shared equally among workers; a share is never below 2 GiB, \
              or below the whole 3/4 where that is less.",
        ..Row::of(Group::Life)
    },
    Row {
        key: "worker_nice",
        kind: count(0, 19),
        default: "5",
        doc: "How much workers that compute on the CPU give way to other programs, the bus and the callers \
              among them: added to the nice value of the service. 0 is not at all.",
        ..Row::of(Group::Life)
    },
    Row {
        key: "idle_unload_s",
        kind: count(0, 31_536_000),
        default: "0",
        unit: "seconds",
        doc: "How long a model stays loaded without a call; 0 is for ever. The next call loads it \
              again, and waits for that.",
        ..Row::of(Group::Life)
    },
    Row {
        key: "log",
        kind: Kind::Filter,
        default: "info",
        doc: "What is logged. A worker takes a change when it is started. Of the libraries `h2`, `hyper_util`, `tonic`, `tower` and `zbus` no more than warnings, and of `ort` no more than errors, unless it names them. The content of texts never is.",
        ..Row::of(Group::Life)
    },
    Row {
        key: "core_dumps",
        kind: Kind::Bool,
        default: "false",
        doc: "Whether the service and the gateway may leave a core dump when they crash, as far as \
              the limit of the unit or the shell lets them: it holds callers' texts. Without it \
              nobody but root may attach a debugger either. Workers leave none in any case. Read \
              at the start only: a change takes a restart.",
        ..Row::of(Group::Life)
    },
    Row {
        key: "http_listen",
        kind: Kind::Listen,
        default: "none",
        doc: "Where `op-dbus gateway` answers HTTP; the daemon itself never does. An address that \
              other machines reach is accepted only with an API key. A socket that systemd hands \
              over is used in its place.",
        ..Row::of(Group::Gateway)
    },
];
