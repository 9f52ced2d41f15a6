//! What the figures were measured on.

use std::collections::BTreeSet;

use serde::Serialize;

/// Instruction sets that embedding profits from, in the kernel's spelling for x86 and ARM.
const ISA_OF_INTEREST: &[&str] = &[
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
    "sme",
];

/// The machine.
#[derive(Debug, PartialEq, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub isa: Vec<&'static str>,
    pub kernel: String,
    pub architecture: &'static str,
    /// Processes that wanted a CPU in the minute before the run.
    pub load_before: f64,
}

impl Machine {
    /// This machine, as far as the kernel tells.
    pub fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().and_then(|load| load.parse().ok());
        let (cpu, isa) = processor(&cpuinfo);
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            isa,
            kernel: kernel.trim().to_owned(),
            architecture: std::env::consts::ARCH,
            load_before: load.unwrap_or(0.0),
        }
    }

    /// One line for the report.
    pub fn line(&self) -> String {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        format!(
            "{}, {} {cores}, {} ({}), Linux {}, load before the run {}",
            self.cpu,
            self.cores,
            self.architecture,
            self.isa.join(" "),
            self.kernel,
            self.load_before
        )
    }
}

/// Name and instruction sets of the first processor.
fn processor(cpuinfo: &str) -> (String, Vec<&'static str>) {
    let value = |wanted: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == wanted).then(|| value.trim())
        })
    };
    let flags = value("flags").or_else(|| value("Features")).unwrap_or_default();
    let flags: BTreeSet<&str> = flags.split_whitespace().collect();
    let isa = ISA_OF_INTEREST.iter().filter(|isa| flags.contains(**isa)).copied().collect();
    (value("model name").unwrap_or("unknown processor").to_owned(), isa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_is_read() {
        let text = "processor\t: 0\nmodel name\t: A 1\nflags\t\t: fpu fma avx2\n\n\
                    processor\t: 1\nmodel name\t: A 2\n";
        assert_eq!(processor(text), ("A 1".to_owned(), vec!["avx2", "fma"]));
        assert_eq!(processor("").0, "unknown processor");
    }
}
