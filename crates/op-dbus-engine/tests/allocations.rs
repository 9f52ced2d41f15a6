//! What is allocated once everything is warm: nothing for a batch, on the worker's side and on the
//! engine's; little for a text. Counted by the allocator, for each thread by itself.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use op_dbus_engine::worker::{ChildBackend, RegionShape, Timeouts, serve};
use op_dbus_engine::{
    Backend, BackendError, BackendFactory, Batch, BatchLayout, BatchLimits, Call, Description,
    Engine, EngineConfig, ModelShape, Pool, Tokenizer,
};

const ROLE: &str = "OP_DBUS_TEST_WORKER";
const DIMENSIONS: usize = 8;
const PATIENT: Timeouts = Timeouts { load: Duration::from_secs(60), run: Duration::from_secs(60) };

/// Batches that a side may run before it is warm.
const WARM_UP: usize = 3;

/// Strings of the reply: provider, device and precision.
const PER_CALL: u64 = 3;

/// For a text on its way to the queue: its ids as they are found, a buffer for a word, the list of its
/// rows, and the row's ids.
const PER_TEXT: u64 = 4;

/// For a call on its way to the queue, and back: its state, its channel, its vectors, its rows' list,
/// and a place among those who wait.
const PER_CALL_BEFORE: u64 = 6;

/// Buffers that grow once more when a larger batch or a deeper queue comes than any before.
const GROWTHS: usize = 24;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
fn allocations() -> u64 {
    ALLOCATIONS.get()
}

fn count() {
    // Gone while a thread ends, when nobody counts any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator; counting touches a thread local without
// a destructor, which allocates nothing.
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

/// Says what its thread has allocated since the batch before: in the vectors, and to the test.
struct Meter {
    description: Description,
    before: u64,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl Meter {
    fn new(seen: Arc<Mutex<Vec<u64>>>) -> Self {
        seen.lock().unwrap().reserve(10_000);
        let description = Description {
            provider: "test".into(),
            device: "test:0".into(),
            devices: 1,
            precision: "f32".into(),
            engine: "test".into(),
            dimensions: DIMENSIONS,
            pid: std::process::id(),
            ..Description::default()
        };
        Self { description, before: allocations(), seen }
    }
}

impl Backend for Meter {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        let since = allocations() - self.before;
        self.seen.lock().unwrap().push(since);
        assert_eq!(out.len(), batch.rows() * DIMENSIONS);
        out.fill(since as f32);
        self.before = allocations();
        Ok(())
    }
}

/// Not a test of its own: the worker that the tests start.
#[test]
fn worker_process() {
    if std::env::var_os(ROLE).is_some() {
        serve("", || Ok(Box::new(Meter::new(Arc::default())))).unwrap();
        std::process::exit(0);
    }
}

#[test]
fn a_batch_allocates_nothing_on_either_side_of_a_worker_process() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--nocapture"]).env(ROLE, "meter");
    let shape = RegionShape { tokens_max: 512, rows_max: 64, dimensions: DIMENSIONS };
    let mut child = ChildBackend::spawn(command, shape, PATIENT).unwrap();
    let ids = [7; 512];
    let lengths = [8; 64];
    let mut out = [f32::NAN; 64 * DIMENSIONS];
    for round in 0..200 {
        let rows = 1 + (round * 37) % 64;
        let batch = Batch { ids: &ids[..8 * rows], lengths: &lengths[..rows] };
        let out = &mut out[..rows * DIMENSIONS];
        let before = allocations();
        child.run(&batch, out).unwrap();
        if round >= WARM_UP {
            assert_eq!(allocations() - before, 0, "the engine's side, batch {round}");
            assert!(out.iter().all(|since| *since == 0.0), "the worker's side, batch {round}");
        }
    }
}

fn model(dimensions: usize) -> ModelShape {
    ModelShape { normalized: false, ..ModelShape::new(dimensions, 64) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_worker_thread_allocates_for_calls_and_not_for_batches() {
    for layout in [BatchLayout::Padded, BatchLayout::Packed] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let meter = Arc::clone(&seen);
        let batch = BatchLimits { layout, tokens_max: 256, ..BatchLimits::default() };
        let factory: BackendFactory =
            Box::new(move |_| Ok(Box::new(Meter::new(Arc::clone(&meter)))));
        let engine = Engine::start(
            Tokenizer::bytes(64),
            model(DIMENSIONS),
            vec![Pool { batch, ..Pool::new(factory) }],
            EngineConfig::default(),
        )
        .unwrap();
        let texts: Vec<String> = (0..1000).map(|n| "x".repeat(1 + n * 7919 % 60)).collect();
        let embed = |texts: &[String]| {
            let call = Call { inputs: texts.to_vec().into(), ..Call::default() };
            engine.embed(call)
        };
        embed(&texts).await.unwrap();
        let warm = seen.lock().unwrap().len();
        for _ in 0..3 {
            embed(&texts).await.unwrap();
        }
        for text in texts.chunks(1).take(100) {
            embed(text).await.unwrap();
        }
        let seen = seen.lock().unwrap();
        let since = &seen[warm..];
        let (calls, growths) = (104, GROWTHS as u64);
        assert!(since.len() > 3 * calls, "{} batches", since.len());
        let total: u64 = since.iter().sum();
        assert!(total <= calls as u64 * PER_CALL + growths, "{layout:?}: {total}: {since:?}");
        let without = since.iter().filter(|count| **count == 0).count();
        assert!(without + calls + GROWTHS >= since.len(), "{layout:?}: {since:?}");
    }
}

/// BERT's kind of tokenizer, with the letters for a vocabulary.
fn bert() -> Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    for (letter, id) in ('a'..='z').zip(1..) {
        vocabulary.insert(letter.into(), id.into());
        vocabulary.insert(format!("##{letter}"), (100 + id).into());
    }
    vocabulary
        .extend([("[UNK]", 0), (".", 200), ("the", 201)].map(|(k, id)| (k.into(), id.into())));
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "decoder": null, "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100,
            "continuing_subword_prefix": "##", "vocab": vocabulary},
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), 64).unwrap()
}

/// On one thread, so that everything between a call and its batches is counted here.
#[tokio::test(flavor = "current_thread")]
async fn a_text_and_a_call_allocate_a_few_times_on_their_way_to_the_queue() {
    let meter = Box::new(|_| Ok(Box::new(Meter::new(Arc::default())) as Box<dyn Backend>));
    let engine =
        Engine::start(bert(), model(DIMENSIONS), vec![Pool::new(meter)], EngineConfig::default())
            .unwrap();
    let mut least = [u64::MAX; 2];
    for _ in 0..20 {
        for (least, texts) in least.iter_mut().zip([1, 51]) {
            let texts = vec!["the quick brown fox".to_owned(); texts];
            let call = Call { inputs: texts.into(), ..Call::default() };
            let before = allocations();
            engine.embed(call).await.unwrap();
            *least = (*least).min(allocations() - before);
        }
    }
    let [one, many] = least;
    assert!((many - one).div_ceil(50) <= PER_TEXT, "{one} for a text, {many} for 51");
    assert!(one <= PER_TEXT + PER_CALL_BEFORE, "{one} for a call of one text");
}
