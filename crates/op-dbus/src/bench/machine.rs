//! What the figures were measured on.

use op_dbus_native::Isa;
use serde::Serialize;

/// The machine.
#[derive(Debug, PartialEq, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    /// Instruction sets that there are kernels for, by the names of `--isa`.
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
        Self {
            cpu: processor(&cpuinfo).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            isa: Isa::available().into_iter().map(Isa::as_str).collect(),
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

/// The name of the first processor.
fn processor(cpuinfo: &str) -> &str {
    let name = cpuinfo.lines().find(|line| line.starts_with("model name"));
    name.and_then(|line| line.split_once(": ")).map_or("unknown processor", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_is_read() {
        let text = "processor\t: 0\nmodel name\t: A 1\n\nprocessor\t: 1\nmodel name\t: A 2\n";
        assert_eq!(processor(text), "A 1");
        assert_eq!(processor(""), "unknown processor");
    }
}
