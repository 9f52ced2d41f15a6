//! The room of the cache is that of all that it takes, counted by the allocator.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::{Cache, Call, Engine, EngineConfig, ModelShape, Pool, Tokenizer};

/// So few that what belongs to a vector outweighs it.
const DIMENSIONS: usize = 8;
const ROOM: u64 = 4 << 20;

struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);

/// What a block takes with what an allocator adds to it.
fn block(size: usize) -> u64 {
    (size as u64 + 8).next_multiple_of(16)
}

// SAFETY: everything is passed on to the system's allocator; counting touches an atomic alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(block(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(block(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[tokio::test]
async fn the_room_holds_all_that_belongs_to_vectors() {
    let cache = Arc::new(Cache::new(0));
    let model = ModelShape::new(DIMENSIONS, 32);
    let sim = |_| Ok(Box::new(SimBackend::new(DIMENSIONS)) as _);
    let config = EngineConfig { cache: Arc::clone(&cache), ..EngineConfig::default() };
    let engine =
        Engine::start(Tokenizer::bytes(32), model, vec![Pool::new(Box::new(sim))], config).unwrap();
    let embed = async |uid: u32, round: u32| {
        for call in 0..20 {
            let texts: Vec<String> = (0..1000).map(|n| format!("{round} {call} {n}")).collect();
            engine.embed(Call { uid, inputs: texts.into(), ..Call::default() }).await.unwrap();
        }
    };
    // Buffers grow to their size.
    embed(1, 0).await;
    let before = LIVE.load(Ordering::Relaxed);
    cache.resize(ROOM);
    for (uid, round) in [(1, 1), (2, 2), (3, 3), (1, 4)] {
        embed(uid, round).await;
        let kept = cache.kept();
        assert!(kept.bytes <= ROOM && kept.bytes > ROOM - 1000, "{kept:?}");
        let live = LIVE.load(Ordering::Relaxed) - before;
        assert!(live <= ROOM, "{live} bytes for {kept:?}");
        assert!(live > ROOM / 2, "{live} bytes for {kept:?}: most of the room is not used");
    }
    cache.clear();
    let live = LIVE.load(Ordering::Relaxed).saturating_sub(before);
    // What the last calls left elsewhere is some tens of KiB.
    assert!(live < ROOM / 20, "{live} bytes are left");
}
