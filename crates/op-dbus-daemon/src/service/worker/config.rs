//! What a worker process is told: written by the service, read by `op-dbus worker`.

use std::str::FromStr;

use op_dbus_engine::spec::{self, Spec};
use serde::{Deserialize, Serialize};

use super::super::compiled;
use super::super::provider::Host;
use super::{Blueprint, Crew};
use crate::settings::options::{Told, fleet};
use crate::settings::{CpuEngine, Precision, Provider, Settings};
use crate::telemetry;

/// All that a worker process is told, as JSON in its one argument: both ends are the same program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// What it loads, and what computes that.
    pub backend: Spec,
    /// Whether the simulator computes, and nothing is loaded.
    pub simulated: bool,
    /// Faults to show on purpose, as [`Faults`](op_dbus_engine::sim::Faults) reads them.
    pub faults: Option<String>,
    /// TCP ports of the remote provider's endpoints; others can't be reached.
    pub tcp_ports: Vec<u16>,
    /// Whether addresses of endpoints that are named may be looked up.
    pub look_up_names: bool,
    /// Bytes of its own that the process may ask for.
    pub memory_max: Option<u64>,
    /// What is added to the process's nice value.
    pub nice: u8,
    /// What is logged.
    pub log: String,
}

impl FromStr for WorkerConfig {
    type Err = serde_json::Error;

    fn from_str(json: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(json)
    }
}

impl WorkerConfig {
    /// What worker `number` of `crew` is told.
    pub(super) fn of(
        blueprint: &Blueprint,
        settings: &Settings,
        (number, crew): (usize, &Crew),
        memory_max: Option<u64>,
    ) -> Self {
        let Host { provider, cpu_engine, .. } = blueprint.host;
        let own = settings.providers.get(&provider.to_string());
        let endpoints = match provider {
            Provider::Remote => fleet::endpoints(settings),
            // A worker reaches nothing, unless others compute for it.
            _ => Vec::new(),
        };
        Self {
            backend: backend(blueprint, settings, (number, crew)),
            simulated: provider == Provider::Cpu && cpu_engine == CpuEngine::Sim,
            faults: own.and_then(|own| own.faults.clone()),
            tcp_ports: endpoints.iter().map(|endpoint| endpoint.port).collect(),
            look_up_names: endpoints.iter().any(fleet::Endpoint::is_named),
            memory_max,
            nice: if provider == Provider::Cpu { settings.worker_nice } else { 0 },
            // A reload may have changed it since the settings of this engine were read.
            log: telemetry::filter().unwrap_or_else(|| settings.log.clone()),
        }
    }
}

fn backend(blueprint: &Blueprint, settings: &Settings, (number, crew): (usize, &Crew)) -> Spec {
    let Blueprint { host, region, .. } = blueprint;
    let member = crew.member(number);
    let option = |(key, told): &(String, Told)| {
        let value = match told {
            Told::Value(value) => value.clone(),
            Told::Folder => compiled::folder(blueprint, settings).display().to_string(),
        };
        (key.clone(), value)
    };
    Spec {
        model_dir: settings.model_dir.clone(),
        model: blueprint.model.clone(),
        space: blueprint.space.clone(),
        max_input_tokens: blueprint.max_input_tokens,
        cache_dir: blueprint.cache(settings),
        runtime: host.runtime.clone(),
        threads: member.threads,
        cpu_engine: match host.cpu_engine {
            // The simulator loads nothing, and is confined as what needs no library.
            CpuEngine::Native | CpuEngine::Sim => spec::CpuEngine::Native,
            CpuEngine::Ort => spec::CpuEngine::Ort,
        },
        cpu_isa: settings.cpu_isa.clone(),
        cpus: member.cpus.to_vec(),
        // What is measured beside other work would be wrong for long.
        calibrate: host.calibrate && number < crew.workers,
        provider: host.provider.to_string(),
        provider_library: host.library.clone(),
        provider_options: host.options.iter().map(option).collect(),
        // Workers take the devices in turn.
        device: host.devices.get(number % host.devices.len().max(1)).map_or(0, |&n| n as usize),
        precision: match blueprint.precision {
            Precision::Auto => None,
            Precision::F32 => Some(spec::Precision::F32),
            Precision::F16 => Some(spec::Precision::F16),
            Precision::Bf16 => Some(spec::Precision::Bf16),
            Precision::Int8 => Some(spec::Precision::Int8),
        },
        batch_tokens_max: region.tokens_max,
        batch_rows_max: region.rows_max,
        io_binding: match settings.io_binding.as_str() {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        },
    }
}
