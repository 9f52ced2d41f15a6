//! The backend against endpoints that are played here: who gets a batch, and what is made of each answer.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::time::{Duration, Instant};

use op_dbus_engine::{Backend, BackendError};
use op_dbus_remote::{Options, RemoteBackend};

use played::{Endpoint, Mood, PATIENT, SHORT, backend, device, hasty, options};

/// The endpoints.
mod played;
/// What they have to show, and how much they take.
mod shown;
/// Those that are sent texts.
mod texts;

#[test]
fn the_next_takes_over_and_the_first_comes_back() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    assert_eq!(backend.description().devices, 2);
    assert_eq!(device(&mut backend).unwrap(), "remote:0");
    one.set(Mood::All(503));
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    one.set(Mood::Well);
    // Once it has rested.
    while device(&mut backend).unwrap() != "remote:0" {}
}

#[test]
fn one_that_has_become_another_model_is_not_used_again() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Otherwise));
    let mut backend = backend(&[&one, &two], SHORT).unwrap();
    one.set(Mood::All(503));
    let error = device(&mut backend).unwrap_err();
    assert!(matches!(error, BackendError::Lost(_)), "{error:?}");
    one.set(Mood::Well);
    let mut alone = self::backend(&[&two, &one], SHORT).unwrap();
    two.set(Mood::All(503));
    let error = device(&mut alone).unwrap_err().to_string();
    assert!(error.contains("no endpoint takes the batch within 1 s"), "{error}");
}

#[test]
fn a_refused_batch_is_told_from_a_server_that_refuses_everything() {
    let one = Endpoint::new(Mood::Only(400));
    let mut patient = backend(&[&one], PATIENT).unwrap();
    assert!(matches!(device(&mut patient), Err(BackendError::Failed(why)) if why.contains("400")));
    one.set(Mood::Only(413));
    assert!(matches!(device(&mut patient), Err(BackendError::OutOfMemory(_))));
    let mut backend = backend(&[&one], SHORT).unwrap();
    for status in [400, 413, 500] {
        one.set(Mood::All(status));
        assert!(matches!(device(&mut backend), Err(BackendError::Lost(_))), "{status}");
        one.set(Mood::Well);
        while device(&mut backend).is_err() {}
    }
}

/// Which is none of its neighbours' fault, whom the engine then tries without it.
#[test]
fn a_batch_that_servers_fail_is_tried_twice() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    let statuses = [500, 502, 403, 424, 302].map(Mood::Only);
    for mood in statuses.into_iter().chain([Mood::Quoting, Mood::Number(0.0)]) {
        let before = (one.asked().1, two.asked().1);
        one.set(mood);
        two.set(mood);
        let error = device(&mut backend).unwrap_err();
        assert!(matches!(error, BackendError::Failed(_)), "{mood:?}: {error:?}");
        assert_eq!((one.asked().1, two.asked().1), (before.0 + 1, before.1 + 1), "{mood:?}");
        // Neither has lost its place.
        one.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:0");
        one.set(mood);
        two.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
    }
    let mut alone = self::backend(&[&one], PATIENT).unwrap();
    one.set(Mood::Only(500));
    let before = one.asked().1;
    assert!(matches!(device(&mut alone), Err(BackendError::Failed(why)) if why.contains("500")));
    assert_eq!(one.asked().1, before + 2);
}

#[test]
fn tries_beyond_the_first_round_are_shared_out() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let options = Options { attempts_max: 4, ..options(&[&one, &two], PATIENT) };
    let mut backend = RemoteBackend::load(options, || unreachable!("no text is sent")).unwrap();
    one.set(Mood::Only(500));
    two.set(Mood::Only(500));
    let before = (one.asked().1, two.asked().1);
    assert!(matches!(device(&mut backend), Err(BackendError::Failed(_))));
    assert_eq!((one.asked().1 - before.0, two.asked().1 - before.1), (2, 2));
}

/// However few tries a batch has.
#[test]
fn who_computes_nothing_keeps_no_other_from_being_asked() {
    let asked = |mood| {
        let all = [(); 4].map(|()| Endpoint::new(Mood::Well));
        let mut backend = backend(&all.each_ref(), PATIENT).unwrap();
        all[..3].iter().for_each(|one| one.set(mood));
        let before = all[3].asked().1;
        let device = device(&mut backend).map_err(|error| error.to_string());
        (device, all[3].asked().1 - before)
    };
    let statuses = [400, 413, 422, 403, 404, 424, 302, 503, 401].map(Mood::Only);
    for mood in statuses.into_iter().chain([Mood::All(503), Mood::HangsUp { once: false }]) {
        assert_eq!(asked(mood), (Ok("remote:3".to_owned()), 1), "{mood:?}");
    }
    // What ends two of them may end the others as well.
    for mood in [Mood::Only(500), Mood::Only(502), Mood::Only(504), Mood::Quoting] {
        let (device, batches) = asked(mood);
        assert!(device.is_err() && batches == 0, "{mood:?}: {device:?}");
    }
}

#[test]
fn numbers_that_cannot_be_normalised_are_no_vectors() {
    let one = Endpoint::new(Mood::Well);
    let mut backend = backend(&[&one], PATIENT).unwrap();
    for (number, told) in [(0.0, "zeros alone"), (1e30, "can't be made one of length 1")] {
        one.set(Mood::Number(number));
        let error = device(&mut backend).unwrap_err().to_string();
        assert!(error.contains(told), "{number}: {error}");
    }
}

#[test]
fn who_was_silent_is_left_alone_for_as_long() {
    const REQUEST_TIME: Duration = Duration::from_millis(500);
    // On a busy machine it may rest from the load on, or count late that it was asked, and not five times.
    assert!((0..5).any(|_| {
        let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
        let Ok(mut backend) = hasty(&[&one, &two], REQUEST_TIME, PATIENT) else { return false };
        one.set(Mood::Silent);
        let since = Instant::now();
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
        let before = one.asked();
        while one.asked() == before {
            assert_eq!(device(&mut backend).unwrap(), "remote:1");
        }
        // It was waited for, and then it rested.
        since.elapsed() >= 2 * REQUEST_TIME
    }));
}

/// One request may take as long as the batch.
#[test]
fn the_silent_leave_time_for_the_others() {
    const TIME: Duration = Duration::from_secs(4);
    // The last one has a second, which a busy machine may spend otherwise, and not five times.
    assert!((0..5).any(|_| {
        let all = [(); 3].map(|()| Endpoint::new(Mood::Well));
        let Ok(mut backend) = hasty(&all.each_ref(), TIME, TIME) else { return false };
        all[0].set(Mood::Silent);
        all[1].set(Mood::Silent);
        device(&mut backend).is_ok_and(|device| device == "remote:2")
    }));
}

/// It would be waited for for two minutes otherwise.
#[test]
fn a_caller_waits_a_moment_for_one_that_has_failed() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    one.set(Mood::All(503));
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    one.set(Mood::Silent);
    let (since, before) = (Instant::now(), one.asked());
    while one.asked() == before {
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
    }
    assert!(since.elapsed() < PATIENT / 2, "{:?}", since.elapsed());
}

/// Each would take a second of the same caller's otherwise.
#[test]
fn a_batch_waits_for_one_that_has_failed_and_for_no_more() {
    let all = [(); 4].map(|()| Endpoint::new(Mood::Well));
    let mut backend = backend(&all.each_ref(), PATIENT).unwrap();
    let away = &all[..3];
    away.iter().for_each(|one| one.set(Mood::All(503)));
    assert_eq!(device(&mut backend).unwrap(), "remote:3");
    let asked = || away.iter().map(|one| one.asked().0).collect::<Vec<_>>();
    let begin = asked();
    // The last of them, which is asked when the others have been.
    while asked()[2] == begin[2] {
        let before: usize = asked().iter().sum();
        assert_eq!(device(&mut backend).unwrap(), "remote:3");
        assert!(asked().iter().sum::<usize>() <= before + 1, "{begin:?}, {:?}", asked());
    }
}

#[test]
fn who_asks_for_a_rest_gets_it_and_need_not_prove_itself_again() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    for status in [429, 503] {
        let mut backend = backend(&[&one, &two], PATIENT).unwrap();
        one.set(Mood::Later(status, 1));
        let (trials, batches) = one.asked();
        let since = Instant::now();
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
        assert_eq!(one.asked(), (trials, batches + 1), "{status}");
        one.set(Mood::Well);
        while device(&mut backend).unwrap() != "remote:0" {}
        assert!(since.elapsed() >= SHORT, "{:?}", since.elapsed());
        assert_eq!(one.asked(), (trials, batches + 2), "{status}");
    }
}

/// It would keep its callers for what is left of their time.
#[test]
fn a_batch_does_not_wait_for_who_is_silent_beyond_its_time() {
    const BATCH_TIME: Duration = Duration::from_millis(1900);
    let in_vain =
        |why: &String| why.starts_with("no endpoint takes the batch within 1 s; none can be");
    // Nothing is left of that time where a busy machine spends it otherwise, which it does not five times.
    assert!((0..5).any(|_| {
        let one = Endpoint::new(Mood::Well);
        let Ok(mut backend) = hasty(&[&one], SHORT, BATCH_TIME) else { return false };
        one.set(Mood::Silent);
        matches!(device(&mut backend), Err(BackendError::Lost(why)) if in_vain(&why))
    }));
}

#[test]
fn what_a_server_says_of_a_callers_batch_is_not_told() {
    let one = Endpoint::new(Mood::Well);
    let mut backend = backend(&[&one], SHORT).unwrap();
    for mood in [Mood::Only(400), Mood::Only(500), Mood::Only(413), Mood::Quoting] {
        one.set(mood);
        let error = device(&mut backend).unwrap_err().to_string();
        assert!(!error.contains("said words"), "{mood:?}: {error}");
    }
    // Of the trial batch it is, since nobody's text is in it.
    let refused = Endpoint::new(Mood::All(500));
    let error = self::backend(&[&refused], SHORT).unwrap_err().to_string();
    assert!(error.contains("it answers 500 (said words)"), "{error}");
}

/// It would be asked ten times in a second otherwise.
#[test]
fn who_proves_itself_and_is_away_for_batches_is_asked_less_and_less() {
    let one = Endpoint::new(Mood::Well);
    let mut backend = backend(&[&one], SHORT).unwrap();
    one.set(Mood::Only(503));
    let before = one.asked().1;
    assert!(matches!(device(&mut backend), Err(BackendError::Lost(_))));
    // At once, and after 0.1, 0.2 and 0.4 seconds more.
    assert!(one.asked().1 - before <= 4, "{:?}", one.asked());
}

#[test]
fn one_that_fails_what_another_computes_loses_its_place() {
    const BATCHES: usize = 20;
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    for status in [500, 400, 422, 413] {
        one.set(Mood::Only(status));
        let before = one.asked().1;
        for _ in 0..BATCHES {
            assert_eq!(device(&mut backend).unwrap(), "remote:1", "{status}");
        }
        assert!((3..BATCHES).contains(&(one.asked().1 - before)), "{status}: {:?}", one.asked());
        one.set(Mood::Well);
        while device(&mut backend).unwrap() != "remote:0" {}
    }
}

/// However often it is asked for it, where tries are many.
#[test]
fn one_batch_that_another_computes_costs_nobody_their_place() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let options = Options { attempts_max: 8, ..options(&[&one, &two], PATIENT) };
    let mut backend = RemoteBackend::load(options, || unreachable!("no text is sent")).unwrap();
    one.set(Mood::Only(500));
    two.set(Mood::First(3, 500));
    let before = one.asked().1;
    assert_eq!(device(&mut backend).unwrap(), "remote:1");
    assert_eq!(one.asked().1 - before, 4);
    one.set(Mood::Well);
    assert_eq!(device(&mut backend).unwrap(), "remote:0");
}

/// However often somebody sends it.
#[test]
fn a_text_that_all_refuse_costs_nobody_their_place() {
    const TIMES: usize = 5;
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = backend(&[&one, &two], PATIENT).unwrap();
    for (first, second) in [(400, 422), (413, 400), (422, 500)] {
        let before = (one.asked().1, two.asked().1);
        one.set(Mood::Only(first));
        two.set(Mood::Only(second));
        for _ in 0..TIMES {
            let error = device(&mut backend).unwrap_err();
            assert_eq!(matches!(error, BackendError::OutOfMemory(_)), first == 413, "{error:?}");
            assert!(error.to_string().contains(&first.to_string()), "{error}");
        }
        let asked = (one.asked().1 - before.0, two.asked().1 - before.1);
        assert_eq!(asked, (TIMES, TIMES), "{first}, {second}");
        one.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:0");
        one.set(Mood::Only(first));
        two.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:1");
        one.set(Mood::Well);
        assert_eq!(device(&mut backend).unwrap(), "remote:0");
    }
}

/// The worker would count as lost otherwise.
#[test]
fn a_text_that_one_refuses_is_refused_where_the_others_are_silent() {
    // One has a second to load and half of one to refuse, which a busy machine may spend otherwise, and not five times.
    assert!((0..5).any(|_| {
        let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
        let Ok(mut backend) = hasty(&[&one, &two], SHORT, SHORT) else { return false };
        one.set(Mood::Only(400));
        two.set(Mood::Silent);
        matches!(device(&mut backend), Err(BackendError::Failed(why)) if why.contains("400"))
    }));
}
