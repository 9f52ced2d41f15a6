//! What the fuzzer of `tests/fuzz` drives here: weights of any numbers, packed and computed with.

use std::path::PathBuf;

use op_dbus_engine::{Backend, Batch};
use op_dbus_graph::{Family, Pooling};

use crate::{Isa, NativeBackend, Options, Precision, Source};

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] = &[("computed", computed)];

/// Ids that the kept cases' vocabularies have, and one that they have not.
const BATCH: Batch<'_> = Batch { ids: &[0, 1, 2, 1, 9, 2], lengths: &[3, 1, 2] };
/// A folder that can't be made: nothing is kept.
const NOWHERE: &str = "/dev/null/cache";

/// A `config.json`, a NUL, and a safetensors file: an encoder of it computes a batch in each precision.
fn computed(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let config = serde_json::from_slice(parts.next().unwrap_or_default());
    let (Ok(config), Some(weights)) = (config, parts.next()) else { return false };
    let config: serde_json::Value = config;
    let number = |key: &str| config[key].as_u64().and_then(|number| usize::try_from(number).ok());
    let family = match config["model_type"].as_str() {
        Some("mpnet") => Family::Mpnet,
        _ => Family::Bert,
    };
    let mut understood = false;
    for precision in Precision::ALL {
        let options = Options {
            cache_dir: PathBuf::from(NOWHERE),
            key: String::new(),
            isa: Isa::best(),
            precision,
            threads: 1,
            cpus: Vec::new(),
            length_max: 3,
            pooling: Pooling::Mean,
            normalize: true,
            dimensions: number("hidden_size").unwrap_or_default(),
            calibrate: false,
        };
        let source = || {
            Ok(Source {
                family,
                config: config.clone(),
                weights: weights.to_vec(),
                dense: Vec::new(),
                calibration: vec![vec![0, 1, 2]],
            })
        };
        let Ok(mut backend) = NativeBackend::load(options, source) else { continue };
        let mut out = vec![f32::NAN; BATCH.rows() * backend.description().dimensions];
        let all = backend.run(&BATCH, &mut out);
        assert!(all.is_err() || number("vocab_size").is_some_and(|words| words > 9), "{precision}");
        let known = Batch { ids: &BATCH.ids[..4], lengths: &BATCH.lengths[..2] };
        let room = 2 * backend.description().dimensions;
        understood |= backend.run(&known, &mut out[..room]).is_ok();
    }
    understood
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
