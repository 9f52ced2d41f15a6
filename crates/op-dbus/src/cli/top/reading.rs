//! What the service says of itself at one moment, and where it is asked.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use op_dbus_daemon::settings::Bus;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use zbus::OwnedVariant;

use super::super::status::device_line;
use super::super::{Failure, Service, connect};
use op_dbus_api::json_object;

type Dictionary = HashMap<String, OwnedVariant>;

/// How long the service may take to answer; its answer is in memory, but for the devices: one whose driver hangs has it
/// wait for 5 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// One reading. What an older service does not tell is zero or empty.
#[derive(Debug)]
pub struct Reading {
    /// When the counters were read.
    pub at: Instant,
    pub status: Status,
    pub statistics: Statistics,
    /// A line for each device that computes and of which more is known than its name.
    pub devices: Vec<String>,
    /// The replies as they came, in one object.
    pub json: Value,
}

/// Of `GetStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub version: String,
    pub state: String,
    pub status: String,
    pub level: String,
    pub model: String,
    pub dimensions: u64,
    pub max_input_tokens: u64,
    pub provider: String,
    pub requested_provider: String,
    pub fallback_reason: String,
    /// Why the workers are not there; empty while they are.
    pub unloaded: String,
    pub precision: String,
    pub engine: String,
    pub isa: String,
    /// Microseconds since 1970.
    pub since: u64,
    pub pid: u32,
    pub workers: Vec<Worker>,
}

/// One worker of `GetStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Worker {
    pub pid: u32,
    pub model: String,
    pub device: String,
    pub reserved: bool,
    pub state: String,
    pub batches: u64,
    pub rows: u64,
    pub tokens: u64,
    pub busy_us: u64,
    pub restarts: u64,
    pub last_error: String,
}

/// Of `GetStatistics`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Statistics {
    pub calls: u64,
    pub texts: u64,
    pub rows: u64,
    pub tokens: u64,
    pub padded_tokens: u64,
    pub batches: u64,
    pub truncated: u64,
    pub retries: u64,
    pub failures: BTreeMap<String, u64>,
    pub queue_texts: u64,
    pub queue_tokens: u64,
    pub in_flight_calls: u64,
    pub in_flight_tokens: u64,
    pub queue_us_buckets: Vec<(u64, u64)>,
    pub compute_us_buckets: Vec<(u64, u64)>,
}

impl Reading {
    /// # Errors
    /// When a value is of another type than the interface says.
    pub fn new(
        at: Instant,
        status: Value,
        statistics: Value,
        devices: Value,
    ) -> Result<Self, Failure> {
        let lines = devices.as_array().into_iter().flatten().filter_map(device_line).collect();
        Ok(Self {
            at,
            status: typed(&status)?,
            statistics: typed(&statistics)?,
            devices: lines,
            json: json!({ "status": status, "statistics": statistics, "devices": devices }),
        })
    }
}

fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, Failure> {
    let unknown = |error| {
        Failure::refused(format!("the service is of another version than this command: {error}"))
    };
    T::deserialize(value).map_err(unknown)
}

/// Where readings come from. The service and the bus may go and come back.
pub struct Source {
    bus: Bus,
    service: Option<Service>,
}

impl Source {
    /// # Errors
    /// Exit code 3 when there is no such bus.
    pub async fn connect(bus: &Bus) -> Result<Self, Failure> {
        Ok(Self { bus: bus.clone(), service: Some(connect(bus).await?) })
    }

    /// One reading. A service that is not running is not started by it.
    ///
    /// # Errors
    /// When the service is not there or does not answer. The next reading tries anew.
    pub async fn read(&mut self) -> Result<Reading, Failure> {
        // Back in its place only when all went well: a bus that went needs a new connection.
        let service = match self.service.take() {
            Some(service) => service,
            None => connect(&self.bus).await?,
        };
        let answers = async {
            let status: Dictionary = service.read_if_running("GetStatus").await?;
            let statistics: Dictionary = service.read_if_running("GetStatistics").await?;
            // Drivers may take long to tell of devices, and rates are over the time between counters.
            let at = Instant::now();
            let devices: Vec<Dictionary> = service.read_if_running("ListDevices").await?;
            Ok::<_, Failure>((at, status, statistics, devices))
        };
        let answers = tokio::time::timeout(ANSWER_TIMEOUT, answers).await;
        let (at, status, statistics, devices) =
            answers.unwrap_or_else(|_| Err(service.silent(ANSWER_TIMEOUT)))?;
        self.service = Some(service);
        let devices = devices.iter().map(json_object).collect();
        Reading::new(at, json_object(&status), json_object(&statistics), devices)
    }
}
