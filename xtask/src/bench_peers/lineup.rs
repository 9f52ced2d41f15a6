//! Who is measured: ourselves in each precision, and the libraries that people would use instead.

use std::path::Path;
use std::process::Command;

use super::competitor::{Competitor, Entry};
use super::environment::Environment;
use crate::shell;

/// Everybody, in the order of the tables.
pub const ENTRIES: &[Entry] = &[
    Entry { library: "native", title: "op-dbus", precision: "f32", exports: &[] },
    Entry { library: "native", title: "op-dbus", precision: "bf16", exports: &[] },
    Entry { library: "native", title: "op-dbus", precision: "int8", exports: &[] },
    Entry {
        library: "ort",
        title: "op-dbus with `cpu_engine = ort`",
        precision: "f32",
        exports: &[],
    },
    Entry { library: "torch", title: "sentence-transformers", precision: "f32", exports: &[] },
    Entry { library: "torch", title: "sentence-transformers", precision: "bf16", exports: &[] },
    Entry {
        library: "onnxruntime",
        title: "ONNX Runtime",
        precision: "f32",
        exports: &["plain", "onnxruntime-f32"],
    },
    Entry {
        library: "onnxruntime",
        title: "ONNX Runtime",
        precision: "int8",
        exports: &["plain", "onnxruntime-f32", "onnxruntime-int8"],
    },
    Entry { library: "openvino", title: "OpenVINO", precision: "f32", exports: &["plain"] },
    Entry { library: "openvino", title: "OpenVINO", precision: "bf16", exports: &["plain"] },
    Entry {
        library: "openvino",
        title: "OpenVINO, NNCF",
        precision: "int8",
        exports: &["plain", "openvino-int8"],
    },
    Entry {
        library: "fastembed",
        title: "fastembed",
        precision: "f32",
        exports: &["plain", "fastembed"],
    },
];

impl Entry {
    /// Whether it is op-dbus itself.
    pub fn ours(&self) -> bool {
        matches!(self.library, "native" | "ort")
    }
}

/// Where everything lies.
pub struct Places<'a> {
    /// The program that is measured.
    pub exe: &'a Path,
    /// The model store.
    pub models: &'a Path,
    /// The model's folder in it.
    pub model: &'a Path,
    pub level: &'a str,
    /// What was exported from the model.
    pub work: &'a Path,
    /// Everything of this task.
    pub folder: &'a Path,
    /// Texts that quantisers may look at.
    pub samples: &'a Path,
}

impl Places<'_> {
    /// Our program with this store and a cache of its own.
    pub fn op_dbus(&self, words: &[&str]) -> Command {
        let mut command = shell::program(self.exe, words);
        command
            .env("OP_DBUS_MODEL_DIR", self.models)
            .env("OP_DBUS_CACHE_DIR", self.folder.join("cache"))
            .env("OP_DBUS_STATE_FILE", self.folder.join("state.json"))
            .env_remove("OP_DBUS_BUS");
        command
    }
}

/// Whether a peer is among those `wanted`, which none are called if all are.
pub fn asked_for(wanted: &[String], entry: &Entry) -> bool {
    wanted.is_empty() || wanted.iter().any(|name| name == entry.library)
}

/// Starts everybody. Who can't be measured is told with the reason.
pub fn start(
    environment: &Environment,
    places: &Places<'_>,
    wanted: &[String],
) -> (Vec<Competitor>, Vec<(&'static Entry, String)>) {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    let bf16 = cpu_has_bf16();
    for entry in ENTRIES {
        if !entry.ours() && !asked_for(wanted, entry) {
            continue;
        }
        println!("starting {} in {}", entry.title, entry.precision);
        match one(entry, environment, places, bf16) {
            Ok(competitor) => there.push(competitor),
            Err(reason) => {
                println!("  not measured: {reason}");
                missing.push((entry, reason));
            }
        }
    }
    (there, missing)
}

fn one(
    entry: &'static Entry,
    environment: &Environment,
    places: &Places<'_>,
    bf16: bool,
) -> Result<Competitor, String> {
    if entry.precision == "bf16" && !bf16 {
        return Err("this CPU does not compute in bf16".to_owned());
    }
    if entry.ours() {
        let words = ["bench", "--driven", "--at", "engine", "--level", places.level];
        let mut command = places.op_dbus(&words);
        command.args(["--engine", entry.library, "--precision", entry.precision]);
        return Competitor::start(entry, command, places.folder);
    }
    if let Some(reason) = environment.reason(entry.library) {
        return Err(reason);
    }
    environment.export(places.model, places.work, (entry.exports, places.samples))?;
    let mut command = environment.program("peer.py");
    command.args([entry.library, "--precision", entry.precision]);
    command.arg("--model").arg(places.model).arg("--work").arg(places.work);
    Competitor::start(entry, command, places.folder)
}

/// Whether bf16 is arithmetic here, or only a way to make f32 slower.
pub fn cpu_has_bf16() -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags =
        cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    flags.is_some_and(|flags| {
        flags.split_whitespace().any(|flag| matches!(flag, "avx512_bf16" | "amx_bf16" | "bf16"))
    })
}
