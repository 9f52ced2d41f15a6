//! What is found, by whom, and what goes when the room is used up.

use proptest::prelude::*;

use super::*;

const OUTPUT: Output = Output { full: 4, dimensions: 4, normalise: true, normalise_all: false };
/// What a vector of these tests counts as.
const ONE: u64 = ENTRY_BYTES + 16;

fn by(device: &str) -> Description {
    Description {
        provider: "test".into(),
        device: device.into(),
        devices: 1,
        precision: "f32".into(),
        engine: "test".into(),
        dimensions: 4,
        ..Description::default()
    }
}

fn key(cache: &Cache, text: &str) -> Key {
    cache.keys(0, &[text.to_owned()], Truncate::End, OUTPUT)[0]
}

fn keep(cache: &Cache, uid: u32, text: &str) {
    put(cache, uid, key(cache, text), &[1.0; 4], "test:0");
}

fn put(cache: &Cache, uid: u32, key: Key, vector: &[f32], device: &str) {
    cache.keep(uid, key, &NewVector { vector, tokens: 3, truncated: false, by: &by(device) });
}

fn has(cache: &Cache, uid: u32, text: &str) -> bool {
    cache.find(uid, &[key(cache, text)])[0].is_some()
}

#[test]
fn all_that_a_vector_depends_on_is_in_its_key() {
    let cache = Cache::new(1);
    let texts = |text: &str| vec![text.to_owned()];
    let mut keys = vec![
        cache.keys(0, &texts("ab"), Truncate::End, OUTPUT),
        cache.keys(1, &texts("ab"), Truncate::End, OUTPUT),
        cache.keys(0, &texts("ab\0"), Truncate::End, OUTPUT),
        cache.keys(0, &texts(""), Truncate::End, OUTPUT),
        cache.keys(0, &[vec![0x6261]], Truncate::End, OUTPUT),
        cache.keys(0, &[vec![0x61, 0x62]], Truncate::End, OUTPUT),
        cache.keys(0, &[Vec::<u32>::new()], Truncate::End, OUTPUT),
        cache.keys(0, &texts("ab"), Truncate::Start, OUTPUT),
        cache.keys(0, &texts("ab"), Truncate::Mean, OUTPUT),
        cache.keys(0, &texts("ab"), Truncate::Error, OUTPUT),
        cache.keys(0, &texts("ab"), Truncate::End, Output { dimensions: 2, ..OUTPUT }),
        cache.keys(0, &texts("ab"), Truncate::End, Output { normalise: false, ..OUTPUT }),
        cache.keys(0, &texts("ab"), Truncate::End, Output { normalise_all: true, ..OUTPUT }),
        Cache::new(1).keys(0, &texts("ab"), Truncate::End, OUTPUT),
    ];
    let all = keys.len();
    let again = cache.keys(0, &["x".to_owned(), "ab".to_owned()], Truncate::End, OUTPUT);
    assert_eq!(again[1], keys[0][0], "what else is in the call does not matter");
    keys.sort_by_key(|keys| (keys[0].engine, keys[0].hash));
    keys.dedup();
    assert_eq!(keys.len(), all);
}

#[test]
fn a_user_finds_their_own_alone() {
    let cache = Cache::new(10 * ONE);
    keep(&cache, 1, "a");
    assert!(has(&cache, 1, "a") && !has(&cache, 2, "a"));
    keep(&cache, 2, "a");
    assert_eq!(cache.kept(), Kept { vectors: 2, bytes: 2 * ONE });
    keep(&cache, 2, "a");
    assert_eq!(cache.kept().vectors, 2, "the same again is kept once");
}

#[test]
fn who_has_the_most_loses_what_was_asked_for_the_longest_ago() {
    let cache = Cache::new(4 * ONE);
    for text in ["a", "b", "c", "d"] {
        keep(&cache, 1, text);
    }
    assert!(has(&cache, 1, "a"));
    keep(&cache, 2, "x");
    assert!(!has(&cache, 1, "b") && has(&cache, 1, "a") && has(&cache, 1, "c"));
    keep(&cache, 2, "y");
    for text in 0..100 {
        keep(&cache, 2, &text.to_string());
    }
    let left = ["a", "c", "d"].iter().filter(|text| has(&cache, 1, text)).count();
    assert_eq!(left, 2, "half of the room is theirs, whatever the other does");
    assert_eq!(cache.kept().bytes, 4 * ONE);
}

#[test]
fn what_is_larger_than_the_room_is_not_kept_and_drives_nothing_out() {
    let cache = Cache::new(2 * ONE);
    keep(&cache, 1, "a");
    put(&cache, 1, key(&cache, "b"), &[0.0; 1000], "test:0");
    assert!(has(&cache, 1, "a") && !has(&cache, 1, "b"));
    let off = Cache::new(0);
    assert!(!off.is_on());
    keep(&off, 1, "a");
    assert_eq!(off.kept(), Kept::default());
}

/// Whichever engine they are of: each has its own partition.
#[test]
fn of_several_engines_goes_what_was_asked_for_the_longest_ago() {
    let cache = Cache::new(3 * ONE);
    let [first, second] =
        [7, 8].map(|engine| cache.keys(engine, &["a".to_owned()], Truncate::End, OUTPUT)[0]);
    put(&cache, 1, first, &[0.0; 4], "test:0");
    put(&cache, 1, second, &[0.0; 4], "test:0");
    keep(&cache, 1, "b");
    assert!(cache.find(1, &[first])[0].is_some());
    keep(&cache, 1, "c");
    let is_there = |key| cache.find(1, &[key])[0].is_some();
    assert!(is_there(first) && !is_there(second) && has(&cache, 1, "b") && has(&cache, 1, "c"));
}

/// Else a call that is answered from there waits for all that goes.
#[test]
fn calls_have_their_turn_while_it_is_made_smaller() {
    let cache = Cache::new(u64::MAX);
    let at_once = u64::from(LET_GO_AT_ONCE);
    for n in 0..=2 * at_once {
        keep(&cache, 1, &n.to_string());
    }
    let fits = cache.lock().shrink(0);
    assert_eq!((fits, cache.kept().vectors), (false, at_once + 1));
    cache.resize(ONE);
    assert_eq!(cache.kept(), Kept { vectors: 1, bytes: ONE });
    assert!(has(&cache, 1, &(2 * at_once).to_string()), "the last that was kept");
}

#[test]
fn it_is_emptied_and_resized_and_an_engine_is_forgotten() {
    let cache = Cache::new(10 * ONE);
    for text in ["a", "b", "c"] {
        keep(&cache, 1, text);
        let key = cache.keys(7, &[text.to_owned()], Truncate::End, OUTPUT)[0];
        put(&cache, 2, key, &[0.0; 4], "test:1");
    }
    assert_eq!(cache.forget(7), Kept { vectors: 3, bytes: 3 * ONE });
    assert_eq!(cache.forget(7), Kept::default());
    assert!(has(&cache, 1, "a"));
    cache.resize(2 * ONE);
    assert_eq!(cache.kept(), Kept { vectors: 2, bytes: 2 * ONE });
    assert_eq!(cache.clear(), Kept { vectors: 2, bytes: 2 * ONE });
    assert_eq!(cache.kept(), Kept::default());
    cache.resize(0);
    assert!(!cache.is_on());
}

/// Whichever comes first. It takes a while to copy so large a vector.
#[test]
fn nothing_is_kept_beside_being_turned_off() {
    let vector = vec![0.0; 1 << 20];
    for _ in 0..50 {
        let cache = Cache::new(u64::MAX);
        let key = key(&cache, "a");
        let begin = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                put(&cache, 1, key, &vector, "test:0");
            });
            begin.wait();
            cache.resize(0);
        });
        assert_eq!(cache.kept(), Kept::default());
    }
}

#[test]
fn who_computed_is_described_once() {
    let cache = Cache::new(100 * ONE);
    for n in 0..20 {
        let key = key(&cache, &n.to_string());
        put(&cache, 1, key, &[0.0; 4], ["test:0", "test:1"][n % 2]);
    }
    assert_eq!(cache.lock().origins.len(), 2);
    let found = cache.find(1, &[key(&cache, "3")]).remove(0).unwrap();
    assert_eq!((&*found.origin.device, found.truncated), ("test:1", false));
}

proptest! {
    /// The counts are those of what is there, and never more than the room.
    #[test]
    fn counts_hold_whatever_happens(
        steps in prop::collection::vec((0..5_u32, 0..12_u8, 0..8_usize), 0..200),
        room in 0..3000_u64,
    ) {
        let cache = Cache::new(room);
        for (uid, text, length) in steps {
            let (engine, texts) = (u64::from(text % 3), [text.to_string()]);
            let key = cache.keys(engine, &texts, Truncate::End, OUTPUT)[0];
            match length {
                0 => _ = cache.find(uid, &[key]),
                1 => _ = cache.forget(engine),
                _ => put(&cache, uid, key, &vec![0.0; length], "test:0"),
            }
            let state = cache.lock();
            let users = || state.users.values();
            let partitions = || users().flat_map(|user| user.partitions.values());
            let entries = partitions().flat_map(|partition| partition.entries.iter());
            let sizes: Vec<u64> = entries.map(|(_, entry)| bytes(&entry.cached.vector)).collect();
            prop_assert_eq!(state.kept.vectors, sizes.len() as u64);
            prop_assert_eq!(state.kept.bytes, sizes.iter().sum::<u64>());
            prop_assert_eq!(state.kept.bytes, partitions().map(|partition| partition.bytes).sum::<u64>());
            prop_assert_eq!(state.kept.bytes, users().map(|user| user.bytes).sum::<u64>());
            prop_assert!(state.kept.bytes <= room);
            prop_assert!(users().all(|user| !user.partitions.is_empty()));
            prop_assert!(partitions().all(|partition| !partition.entries.is_empty()));
        }
    }
}
