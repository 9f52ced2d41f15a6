//! What the backend allocates for a batch once it is warm: nothing, on no thread, however many there are, whatever the
//! instruction set and the precision. Counted by the allocator, for all threads, so that there is one test here.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::unistd::{getpid, gettid};
use op_dbus_engine::{Backend, Batch};
use op_dbus_graph::{Family, Pooling};
use op_dbus_native::{Isa, NativeBackend, Options, Precision, Source};
use serde_json::{Map, Value};

/// Tokens of the longest text, as the families have it.
const LENGTH_MAX: usize = 512;

/// Rows of the largest batch, and most tokens of any.
const ROWS_MAX: usize = 160;
const TOKENS_MAX: usize = 4096;

/// The tiny models have some sixty positions, and those here so many times as many.
const REPEATS: usize = 9;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count() {
    // The main thread only waits for the test; what it makes for that may fall into a batch.
    if gettid() != getpid() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`, which is the same.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Model {
    config: Value,
    weights: Vec<u8>,
    dimensions: usize,
}

impl Model {
    /// The tiny MPNet, with a bias by distance, its table of positions repeated until the longest text has them.
    fn mpnet() -> Self {
        let tiny = "../../tests/golden/tiny-mpnet";
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(tiny);
        let config = fs::read(folder.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        let number = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
        let (dimensions, positions) =
            (number("hidden_size"), REPEATS * number("max_position_embeddings"));
        config["max_position_embeddings"] = positions.into();
        let file = fs::read(folder.join("model.safetensors")).unwrap();
        let (length, rest) = file.split_first_chunk::<8>().unwrap();
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
        let (header, data) = rest.split_at(length);
        let mut tensors: Map<String, Value> = serde_json::from_slice(header).unwrap();
        let mut longer = Vec::new();
        for (name, tensor) in &mut tensors {
            let offsets = tensor.get("data_offsets").cloned().unwrap_or_default();
            // What is not a tensor has none.
            let Ok([first, end]) = serde_json::from_value::<[usize; 2]>(offsets) else { continue };
            let mut bytes = data[first..end].to_vec();
            if name.ends_with("position_embeddings.weight") {
                bytes = bytes.repeat(REPEATS);
                tensor["shape"][0] = positions.into();
            }
            tensor["data_offsets"] = [longer.len(), longer.len() + bytes.len()].into();
            longer.extend(bytes);
        }
        let header = serde_json::to_vec(&tensors).unwrap();
        let length = u64::try_from(header.len()).unwrap().to_le_bytes();
        let weights = [&length[..], &header[..], &longer[..]].concat();
        Self { config, weights, dimensions }
    }

    fn backend(&self, isa: Isa, precision: Precision, threads: usize) -> NativeBackend {
        let options = Options {
            // A folder that can't be made: nothing is kept.
            cache_dir: PathBuf::from("/dev/null/cache"),
            key: String::new(),
            isa,
            precision,
            threads,
            cpus: Vec::new(),
            length_max: LENGTH_MAX,
            pooling: Pooling::Mean,
            normalize: true,
            dimensions: self.dimensions,
            calibrate: false,
        };
        let source = || {
            Ok(Source {
                family: Family::Mpnet,
                config: self.config.clone(),
                weights: self.weights.clone(),
                dense: Vec::new(),
                calibration: vec![vec![0, 7, 2]],
            })
        };
        NativeBackend::load(options, source).unwrap()
    }
}

/// Lengths of the texts of some batches: one text or many, short or long, that threads share as a whole or in part,
/// in more chunks and less.
fn batches() -> Vec<Vec<i32>> {
    let longest = i32::try_from(LENGTH_MAX).unwrap();
    let mixed =
        |rows: i32, most: i32| (0..rows).map(|row| 1 + row * 7919 % most).collect::<Vec<_>>();
    vec![
        vec![1],
        vec![97],
        vec![longest],
        vec![15; 2],
        vec![longest, 15, 15],
        vec![200; 5],
        vec![64; 30],
        mixed(65, 40),
        mixed(159, 20),
        vec![1; ROWS_MAX],
        vec![25; ROWS_MAX],
    ]
}

#[test]
fn a_batch_allocates_nothing_once_the_backend_is_warm() {
    let model = Model::mpnet();
    let ids: Vec<i32> = (0..100).cycle().take(TOKENS_MAX).collect();
    let mut out = vec![0.0; ROWS_MAX * model.dimensions];
    let mut allocated = |backend: &mut NativeBackend, lengths: &[i32]| {
        let tokens = usize::try_from(lengths.iter().sum::<i32>()).unwrap();
        let batch = Batch { ids: &ids[..tokens], lengths };
        let out = &mut out[..lengths.len() * model.dimensions];
        out.fill(f32::NAN);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        backend.run(&batch, out).unwrap();
        let since = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert!(out.iter().all(|value| value.is_finite()), "texts of {lengths:?}");
        since
    };
    let (most_rows, batches) = (vec![1; ROWS_MAX], batches());
    for isa in Isa::available() {
        for precision in Precision::ALL {
            for threads in 1..=3 {
                let mut backend = model.backend(isa, precision, threads);
                // It makes room for its rows.
                assert!(allocated(&mut backend, &most_rows) > 0, "nothing is counted");
                for lengths in &batches {
                    let since = allocated(&mut backend, lengths);
                    let threads = format!("{threads} threads");
                    assert_eq!(since, 0, "{isa} {precision}, {threads}, texts of {lengths:?}");
                }
            }
        }
    }
}
