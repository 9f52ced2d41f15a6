//! What endpoints show at the start and later, and batches of which they take no more than a part.

use std::time::Instant;

use op_dbus_engine::{Backend, BackendError, Batch};
use op_dbus_remote::RemoteBackend;

use crate::played::{
    DIMENSIONS, Endpoint, Mood, PATIENT, SHORT, TOKENS_MAX, TRIAL, backend, device,
};

#[test]
fn one_that_cuts_token_ids_is_not_used() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Cuts(TOKENS_MAX - 3)));
    let mut backend = backend(&[&one, &two], SHORT).unwrap();
    one.set(Mood::All(500));
    let error = device(&mut backend).unwrap_err();
    assert!(matches!(error, BackendError::Lost(_)), "{error:?}");
    assert_eq!(two.asked().1, 0);
    let error = self::backend(&[&two], SHORT).unwrap_err().to_string();
    assert!(error.contains("it cuts texts before they have 14 tokens"), "{error}");
}

#[test]
fn one_of_three_that_is_another_model_is_outvoted_at_the_start() {
    let (odd, two, three) =
        (Endpoint::new(Mood::Otherwise), Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    // The others have a second to say so, which a busy machine may spend otherwise, and not five times.
    let mut all = (0..5).filter_map(|_| backend(&[&odd, &two, &three], PATIENT).ok());
    let mut backend = all.find(|found| found.description().device == "remote:1").unwrap();
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    assert_eq!(odd.asked().1, 0);
    odd.set(Mood::Well);
    while device(&mut backend).unwrap() != "remote:0" {}
    // The odd one among the others changes nothing, and of two nobody knows which one it is.
    odd.set(Mood::Otherwise);
    let mut first = self::backend(&[&two, &odd, &three], PATIENT).unwrap();
    assert_eq!(device(&mut first).unwrap(), "remote:0");
    let backend = self::backend(&[&odd, &two], PATIENT).unwrap();
    assert_eq!(backend.description().device, "remote:0");
    // Nor where all differ, or nobody else answers.
    three.set(Mood::Cuts(12));
    two.set(Mood::All(503));
    let backend = self::backend(&[&odd, &two, &three], PATIENT).unwrap();
    assert_eq!(backend.description().device, "remote:0");
}

/// The batch's ids are of rows of one.
fn computed(backend: &mut RemoteBackend, ids: &[i32]) -> Result<(), BackendError> {
    let lengths = vec![1; ids.len()];
    let mut out = vec![f32::NAN; ids.len() * DIMENSIONS];
    backend.run(&Batch { ids, lengths: &lengths }, &mut out)?;
    for (id, vector) in ids.iter().zip(out.chunks(DIMENSIONS)) {
        assert_eq!(vector.iter().position(|x| *x == 1.0), Some(*id as usize % DIMENSIONS));
    }
    Ok(())
}

#[test]
fn servers_that_take_fewer_texts_get_fewer() {
    const IDS: [i32; 7] = [101, 102, 103, 104, 105, 106, 107];
    for status in [400, 413] {
        let one = Endpoint::new(Mood::AtMost(2, status));
        let mut backend = backend(&[&one], PATIENT).unwrap();
        let before = one.asked();
        computed(&mut backend, &IDS).unwrap();
        // Seven and four are refused, after which it proves itself once.
        assert_eq!(one.asked(), (before.0 + TRIAL, before.1 + 2 + 4), "{status}");
        computed(&mut backend, &IDS).unwrap();
        assert_eq!(one.asked(), (before.0 + TRIAL, before.1 + 2 + 4 + 4), "{status}");
    }
}

/// With `rows_max` 1 it is never sent more.
#[test]
fn who_takes_one_text_at_once_is_tried_with_one() {
    for status in [400, 413] {
        let one = Endpoint::new(Mood::AtMost(1, status));
        let mut backend = backend(&[&one], PATIENT).unwrap();
        // Each of the requests has two rows, which come one by one after it.
        assert_eq!(one.asked().0, TRIAL + 2 * TRIAL, "{status}");
        assert_eq!(device(&mut backend).unwrap(), "remote:0");
    }
    // It is not asked for more where it fails a single one.
    let one = Endpoint::new(Mood::All(400));
    let error = backend(&[&one], PATIENT).unwrap_err().to_string();
    assert!(error.contains("it answers 400"), "{error}");
    assert_eq!(one.asked().0, 2);
}

/// Nobody else's batches become smaller for it.
#[test]
fn a_text_that_is_refused_does_not_count_as_too_many() {
    const IDS: [i32; 4] = [101, 102, 103, 104];
    let one = Endpoint::new(Mood::Well);
    let mut backend = backend(&[&one], PATIENT).unwrap();
    for status in [400, 413] {
        one.set(Mood::Not(103, status));
        let error = computed(&mut backend, &IDS).unwrap_err();
        assert_eq!(matches!(error, BackendError::OutOfMemory(_)), status == 413, "{error:?}");
        one.set(Mood::Well);
        let before = one.asked().1;
        computed(&mut backend, &IDS).unwrap();
        assert_eq!(one.asked().1, before + 1, "{status}");
    }
}

/// It is no sign of how many texts servers take either.
#[test]
fn a_text_that_one_refuses_is_computed_by_another() {
    const IDS: [i32; 7] = [101, 102, 103, 104, 105, 106, 107];
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    for status in [400, 413] {
        one.set(Mood::Not(103, status));
        let before = two.asked().1;
        computed(&mut backend, &IDS).unwrap();
        assert_eq!(two.asked().1, before + 1, "{status}");
        // After three of them the other one gets what is left.
        one.set(Mood::Only(status));
        computed(&mut backend, &IDS).unwrap();
        one.set(Mood::Well);
        while device(&mut backend).unwrap() != "remote:0" {}
        let before = one.asked().1;
        computed(&mut backend, &IDS).unwrap();
        assert_eq!(one.asked().1, before + 1, "{status}");
    }
}

#[test]
fn a_start_waits_a_moment_for_one_that_does_not_answer() {
    // A moment is a second, which a busy machine may spend otherwise, and not ten times.
    let one = Endpoint::new(Mood::Well);
    let found = (0..10).find_map(|_| {
        one.set(Mood::HangsUp { once: true });
        backend(&[&one], PATIENT).ok()
    });
    assert_eq!(device(&mut found.unwrap()).unwrap(), "remote:0");
    one.set(Mood::HangsUp { once: false });
    assert!((0..10).any(|_| {
        let before = one.asked().0;
        assert!(backend(&[&one], PATIENT).is_err());
        one.asked().0 > before + 1
    }));
    // One that has answered is not asked again.
    one.set(Mood::All(401));
    let before = one.asked().0;
    let error = backend(&[&one], PATIENT).unwrap_err().to_string();
    assert!(error.contains("it answers 401"), "{error}");
    assert_eq!(one.asked().0, before + 1);
}

/// The two would be waited for for four minutes otherwise.
#[test]
fn a_start_does_not_wait_for_the_silent_where_another_answers() {
    let all = [Mood::Silent, Mood::Silent, Mood::Well].map(Endpoint::new);
    let since = Instant::now();
    let mut backend = backend(&all.each_ref(), PATIENT).unwrap();
    assert_eq!(device(&mut backend).unwrap(), "remote:2");
    assert!(since.elapsed() < PATIENT / 2, "{:?}", since.elapsed());
}

/// More time than at first, where nobody else answers.
#[test]
fn a_start_asks_the_silent_again_where_nobody_answers() {
    let all = [Mood::Silent, Mood::Silent].map(Endpoint::new);
    std::thread::scope(|scope| {
        let started = scope.spawn(|| backend(&all.each_ref(), PATIENT).unwrap());
        while all[1].asked().0 == 0 {
            std::thread::yield_now();
        }
        all[1].set(Mood::Well);
        // Only who is asked again can see that.
        all[0].set(Mood::Well);
        let mut backend = started.join().unwrap();
        assert_eq!(device(&mut backend).unwrap(), "remote:0");
    });
}
