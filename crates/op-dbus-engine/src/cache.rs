//! Finished vectors of texts that come again: in memory, bounded in bytes, and of each user apart.
//!
//! A vector is found by a keyed hash of all that it depends on, so what is kept holds no text. A user
//! has entries of their own, which nobody else finds. When the room is used up, the user with the most
//! bytes loses what they have not asked for the longest: among `n` users nobody gets below an `n`th
//! of the room by what others do.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use lru::LruCache;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::backend::Description;
use crate::call::Truncate;
use crate::output::Output;
use crate::prepare::Input;

/// What an entry takes beside its numbers: key, links, slots of the table, and what an allocator adds
/// to each part. `tests/cache_memory.rs` holds it.
const ENTRY_BYTES: u64 = 256;
/// What does not fit any more is let go so many at a time, and calls have their turn in between. No vector is so large
/// that more have to go for it.
const LET_GO_AT_ONCE: u32 = 1024;

/// The vectors that are kept, of all engines that share it. Off, and empty, while it has no room.
#[derive(Debug)]
pub struct Cache {
    /// Of this process alone, and never told.
    key: [u8; 16],
    engines: AtomicU64,
    /// The room, read without the lock: most services have none.
    bytes_max: AtomicU64,
    state: Mutex<State>,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Vectors.
    pub vectors: u64,
    /// Bytes that they take, with all that belongs to them.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    users: HashMap<u32, User>,
    kept: Kept,
    /// How often a vector was kept or found.
    uses: u64,
    /// Who computed the vectors: a few descriptions, which entries share.
    origins: Vec<Arc<Origin>>,
}

/// What one user has.
#[derive(Debug, Default)]
struct User {
    /// By engine: one that ends, or is unloaded, takes its own along whole, however much that is.
    partitions: HashMap<u64, Partition>,
    bytes: u64,
}

/// What one user has of one engine; those that were asked for last come first.
#[derive(Debug)]
struct Partition {
    entries: LruCache<u128, LruEntry>,
    bytes: u64,
}

/// A vector, and the number of its last use: the order of what lies in several partitions.
#[derive(Debug)]
struct LruEntry {
    used: u64,
    cached: Arc<CachedVector>,
}

/// What finds a vector: the engine, and the hash of all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    engine: u64,
    hash: u128,
}

/// A vector as its caller got it.
#[derive(Debug)]
pub(crate) struct CachedVector {
    pub vector: Box<[f32]>,
    /// Tokens that were embedded for it.
    pub tokens: u32,
    /// Whether its text was longer than the model reads.
    pub truncated: bool,
    pub origin: Arc<Origin>,
}

/// A vector that was computed just now.
#[derive(Debug)]
pub(crate) struct NewVector<'a> {
    pub vector: &'a [f32],
    /// Tokens that were embedded for it.
    pub tokens: u32,
    /// Whether its text was longer than the model reads.
    pub truncated: bool,
    pub by: &'a Description,
}

/// What computed a vector.
#[derive(Debug)]
pub(crate) struct Origin {
    pub provider: String,
    pub device: String,
    pub precision: String,
}

impl Cache {
    /// Room for `bytes_max` bytes; with 0 it is off.
    pub fn new(bytes_max: u64) -> Self {
        // What seeds it is the system's generator; a sum of what it hashes tells nobody the seed.
        let seed = RandomState::new();
        let key = u128::from(seed.hash_one(0_u8)) << 64 | u128::from(seed.hash_one(1_u8));
        Self {
            key: key.to_le_bytes(),
            engines: AtomicU64::new(0),
            bytes_max: AtomicU64::new(bytes_max),
            state: Mutex::default(),
        }
    }

    /// Has room for `bytes_max` bytes from now on, and returns once what does not fit any more is forgotten.
    pub fn resize(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        // Who resizes it meanwhile has the last word.
        while !self.lock().shrink(self.room()) {
            thread::yield_now();
        }
    }

    /// Forgets everything, and tells how much that was.
    pub fn clear(&self) -> Kept {
        // Let go behind the lock: it may be much.
        let all = std::mem::take(&mut *self.lock());
        all.kept
    }

    /// How much is kept now.
    pub fn kept(&self) -> Kept {
        self.lock().kept
    }

    /// Whether there is room for anything.
    pub(crate) fn is_on(&self) -> bool {
        self.room() > 0
    }

    /// A number for an engine whose vectors are kept here: no other one finds them.
    pub(crate) fn enter(&self) -> u64 {
        self.engines.fetch_add(1, Ordering::Relaxed)
    }

    /// Forgets the vectors of an engine, and tells how many there were.
    pub(crate) fn forget(&self, engine: u64) -> Kept {
        let mut gone = Vec::new();
        let mut state = self.lock();
        state.users.retain(|_, user| {
            if let Some(partition) = user.partitions.remove(&engine) {
                user.bytes -= partition.bytes;
                gone.push(partition);
            }
            !user.partitions.is_empty()
        });
        let kept = Kept {
            vectors: gone.iter().map(|partition| partition.entries.len() as u64).sum(),
            bytes: gone.iter().map(|partition| partition.bytes).sum(),
        };
        state.kept.vectors -= kept.vectors;
        state.kept.bytes -= kept.bytes;
        // They are let go behind the lock.
        drop(state);
        kept
    }

    /// What finds the vector of each input.
    pub(crate) fn keys<T: Input>(
        &self,
        engine: u64,
        inputs: &[T],
        truncate: Truncate,
        output: Output,
    ) -> Vec<Key> {
        let Output { full, dimensions, normalise, normalise_all } = output;
        let mut terms = SipHasher24::new_with_key(&self.key);
        terms.write_u8(truncate as u8);
        terms.write_u64(full as u64);
        terms.write_u64(dimensions as u64);
        terms.write(&[u8::from(normalise), u8::from(normalise_all)]);
        let key = |input: &T| {
            // What differs in length comes last, so that no two inputs are hashed alike.
            let mut hasher = terms;
            input.hash(&mut hasher);
            Key { engine, hash: hasher.finish128().as_u128() }
        };
        inputs.iter().map(key).collect()
    }

    /// What is there of each key for a user, and was asked for just now.
    pub(crate) fn find(&self, uid: u32, keys: &[Key]) -> Vec<Option<Arc<CachedVector>>> {
        let mut state = self.lock();
        let State { users, uses, .. } = &mut *state;
        // The keys of a call are of one engine.
        let engine = keys.first().map(|key| key.engine);
        let partition = users.get_mut(&uid).and_then(|user| user.partitions.get_mut(&engine?));
        let Some(partition) = partition else { return vec![None; keys.len()] };
        let find = |key: &Key| {
            let entry = partition.entries.get_mut(&key.hash)?;
            *uses += 1;
            entry.used = *uses;
            Some(Arc::clone(&entry.cached))
        };
        keys.iter().map(find).collect()
    }

    /// Keeps the vector of one input for its user.
    pub(crate) fn keep(&self, uid: u32, key: Key, new: &NewVector<'_>) {
        let NewVector { vector, tokens, truncated, by } = *new;
        let (vector, bytes) = (vector.into(), bytes(vector));
        let mut state = self.lock();
        // Behind the lock: who takes the room away empties it once.
        let room = self.room();
        if bytes > room {
            return;
        }
        let origin = state.origin(by);
        state.take((uid, key.engine), |entries| entries.pop(&key.hash));
        state.put(uid, key, CachedVector { vector, tokens, truncated, origin });
        state.shrink(room);
    }

    fn room(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an entry counts as.
fn bytes(vector: &[f32]) -> u64 {
    ENTRY_BYTES + size_of_val(vector) as u64
}

impl State {
    /// Puts one in that is not there.
    fn put(&mut self, uid: u32, key: Key, cached: CachedVector) {
        let bytes = bytes(&cached.vector);
        self.uses += 1;
        let entry = LruEntry { used: self.uses, cached: Arc::new(cached) };
        let user = self.users.entry(uid).or_default();
        let partition = user
            .partitions
            .entry(key.engine)
            .or_insert_with(|| Partition { entries: LruCache::unbounded(), bytes: 0 });
        partition.entries.push(key.hash, entry);
        partition.bytes += bytes;
        user.bytes += bytes;
        self.kept.vectors += 1;
        self.kept.bytes += bytes;
    }

    /// Takes one out, and the partition and the user that have none left.
    fn take(
        &mut self,
        (uid, engine): (u32, u64),
        one: impl FnOnce(&mut LruCache<u128, LruEntry>) -> Option<LruEntry>,
    ) {
        let Some(user) = self.users.get_mut(&uid) else { return };
        let Some(partition) = user.partitions.get_mut(&engine) else { return };
        if let Some(LruEntry { cached, .. }) = one(&mut partition.entries) {
            let bytes = bytes(&cached.vector);
            partition.bytes -= bytes;
            user.bytes -= bytes;
            self.kept.bytes -= bytes;
            self.kept.vectors -= 1;
        }
        if partition.entries.is_empty() {
            user.partitions.remove(&engine);
        }
        if user.partitions.is_empty() {
            self.users.remove(&uid);
        }
    }

    /// Whose vector goes first: of who has the most, what was asked for the longest ago.
    fn next_to_go(&self) -> Option<(u32, u64)> {
        let (uid, user) = self.users.iter().max_by_key(|(_, user)| user.bytes)?;
        let oldest =
            |partition: &Partition| partition.entries.peek_lru().map(|(_, entry)| entry.used);
        let (engine, _) = user.partitions.iter().min_by_key(|(_, partition)| oldest(partition))?;
        Some((*uid, *engine))
    }

    /// Forgets until the rest fits, but no more than what is let go at once; tells whether it fits.
    fn shrink(&mut self, room: u64) -> bool {
        for _ in 0..LET_GO_AT_ONCE {
            if self.kept.bytes <= room {
                return true;
            }
            let Some(next) = self.next_to_go() else { return true };
            self.take(next, |entries| entries.pop_lru().map(|(_, entry)| entry));
        }
        self.kept.bytes <= room
    }

    /// The description of who computes, kept once however many vectors it made.
    fn origin(&mut self, by: &Description) -> Arc<Origin> {
        let is = |origin: &&Arc<Origin>| {
            origin.provider == by.provider
                && origin.device == by.device
                && origin.precision == by.precision
        };
        if let Some(known) = self.origins.iter().find(is) {
            return Arc::clone(known);
        }
        self.origins.retain(|origin| Arc::strong_count(origin) > 1);
        let Description { provider, device, precision, .. } = by.clone();
        let origin = Arc::new(Origin { provider, device, precision });
        self.origins.push(Arc::clone(&origin));
        origin
    }
}

#[cfg(test)]
mod tests;
