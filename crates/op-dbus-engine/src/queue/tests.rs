//! What is taken out of a lane, and what is left there.

use super::*;

/// Of so many entries of one user.
fn queue(entries: usize) -> Queue<usize> {
    let mut queue = Queue::new(0);
    for item in 0..entries {
        let (uid, class) = (1, Priority::Bulk);
        let tokens = 10 + item;
        let (failed_on, lost, missed) = Default::default();
        queue.push(Entry { uid, class, tokens, enqueued_us: 0, failed_on, lost, missed, item });
    }
    queue
}

#[test]
fn several_are_taken_as_one_after_another_from_the_last_on() {
    for indices in [vec![0, 1, 2], vec![0, 2, 3, 7], vec![1, 6], vec![5, 99], vec![]] {
        let (mut one_by_one, mut together) = (queue(8), queue(8));
        let take = |index: &usize| one_by_one.take(Priority::Bulk, 1, *index);
        let mut expected: Vec<_> = indices.iter().rev().filter_map(take).collect();
        expected.reverse();
        let mut taken = Vec::new();
        together.take_all((Priority::Bulk, 1), indices.iter().copied(), &mut taken);
        let items = |entries: &[Entry<usize>]| -> Vec<usize> {
            entries.iter().map(|entry| entry.item).collect()
        };
        assert_eq!(items(&taken), items(&expected), "{indices:?}");
        let left = |queue: &Queue<usize>| {
            let (_, lane) = queue.lane(Priority::Bulk, 1).unwrap();
            let items: Vec<usize> = lane.entries.iter().map(|entry| entry.item).collect();
            (items, lane.overtaken, queue.texts(), queue.tokens())
        };
        assert_eq!(left(&together), left(&one_by_one), "{indices:?}");
    }
}

/// Else a user who was once served many texts would keep their room for as long as there are any.
#[test]
fn a_lane_that_was_long_keeps_little_room_once_it_is_empty() {
    const ENTRIES: usize = 100_000;
    let room =
        |queue: &Queue<usize>| queue.users[&1].lanes[Priority::Bulk as usize].entries.capacity();
    let mut one_by_one = queue(ENTRIES);
    while one_by_one.take(Priority::Bulk, 1, 0).is_some() {}
    let mut together = queue(ENTRIES);
    together.take_all((Priority::Bulk, 1), 0..ENTRIES, &mut Vec::new());
    let mut purged = queue(ENTRIES);
    assert_eq!(purged.purge(1, &|_| false).len(), ENTRIES);
    for queue in [one_by_one, together, purged] {
        assert!(queue.texts() == 0 && room(&queue) <= ROOM_MAX, "{} entries", room(&queue));
    }
    let mut short = queue(8);
    let before = room(&short);
    short.take_all((Priority::Bulk, 1), 0..8, &mut Vec::new());
    assert_eq!(room(&short), before, "each batch would have to make its room");
}
