//! What is admitted, what is refused, and what is given back.

use super::*;

fn sharing(ledger: Arc<Ledger>, queue_tokens_max: usize, quota_tokens: usize) -> Arc<Admission> {
    let limits = Limits { queue_tokens_max, quota_tokens, ..Limits::default() };
    Admission::new(&limits, ledger)
}

fn admission(queue_tokens_max: usize, quota_tokens: usize) -> Arc<Admission> {
    sharing(Arc::default(), queue_tokens_max, quota_tokens)
}

fn claim(uid: u32, tokens: usize) -> Claim {
    Claim::new(uid, tokens, Priority::Interactive)
}

/// Texts whose memory is that of their tokens.
fn turned_out(work: usize, real: usize) -> Settled {
    Settled { work, real, room: work, held: real, is_exact: false }
}

#[test]
fn a_full_queue_refuses_until_a_permit_is_dropped() {
    let admission = admission(100, 60);
    let first = admission.admit(claim(1, 60), 1000.0).unwrap();
    let error = admission.admit(claim(2, 50), 1000.0).unwrap_err();
    let expected = Error::Overloaded { needed: 50, in_flight: 60, limit: 100, retry_after_ms: 10 };
    assert_eq!(error, expected);
    drop(first);
    assert_eq!(admission.in_flight(), (0, 0));
    admission.admit(claim(2, 50), 1000.0).unwrap();
}

#[test]
fn a_user_at_its_quota_does_not_stop_others() {
    let admission = admission(200, 60);
    let mut permit = admission.admit(claim(1, 60), 10.0).unwrap();
    let error = admission.admit(claim(1, 5), 10.0).unwrap_err();
    assert!(matches!(error, Error::QuotaExceeded { uid: 1, retry_after_ms: 500, .. }));
    let _other = admission.admit(claim(2, 40), 10.0).unwrap();
    permit.settle(turned_out(6, 1));
    let _more = admission.admit(claim(1, 5), 10.0).unwrap();
    assert_eq!(admission.in_flight(), (3, 100));
}

/// What is cut is kept by who calls, and computed by nobody.
#[test]
fn memory_is_no_work() {
    let admission = admission(100, 60);
    let mut permit = admission.admit(claim(1, 50), 1.0).unwrap();
    permit.settle(Settled { held: 40, ..turned_out(50, 5) });
    assert_eq!(admission.in_flight(), (1, 5));
    let error = admission.admit(claim(1, 30), 1.0).unwrap_err();
    assert!(matches!(error, Error::QuotaExceeded { in_flight: 40, .. }), "{error}");
    let time = Some(Time { left: Duration::from_secs(20), tokens_per_s: 1.0 });
    let _in_time = admission.admit(Claim { time, ..claim(1, 20) }, 1.0).unwrap();
    drop(permit);
    let _all = admission.admit(claim(1, 40), 1.0).unwrap();
}

/// As of lists of token ids, beside texts that have a quarter of what they were counted as.
#[test]
fn what_is_exact_is_taken_as_it_is_and_tells_nothing_of_what_is_guessed() {
    let admission = admission(10_000, 10_000);
    let mut texts = admission.admit(claim(1, 100), 1.0).unwrap();
    texts.settle(turned_out(100, 25));
    let mut lists = admission.admit(claim(2, 900), 1.0).unwrap();
    lists.settle(Settled { is_exact: true, ..turned_out(900, 900) });
    // 750 tokens are planned with.
    let time = Some(Time { left: Duration::from_secs(10), tokens_per_s: 100.0 });
    let next = Claim { time, ..claim(3, 400) };
    let exact = admission.admit(Claim { is_exact: true, ..next }, 1.0);
    assert!(matches!(exact, Err(Error::Late { needed: 400, before: 425, .. })), "{exact:?}");
    admission.admit(next, 1.0).unwrap();
}

/// A long call would else keep others out for its first texts until its last.
#[test]
fn nobody_comes_behind_what_is_computed_and_it_counts_until_the_reply() {
    let admission = admission(1_100, 1_100);
    let mut first = admission.admit(claim(1, 650), 1.0).unwrap();
    // 750 tokens are planned with.
    let time = Some(Time { left: Duration::from_secs(10), tokens_per_s: 100.0 });
    let in_time = || admission.admit(Claim { time, ..claim(1, 400) }, 1.0);
    assert!(matches!(in_time(), Err(Error::Late { before: 650, .. })));
    first.computed(COMPUTED_AT_ONCE - 1);
    assert!(matches!(in_time(), Err(Error::Late { before: 650, .. })), "noted for each text");
    first.computed(600 - (COMPUTED_AT_ONCE - 1));
    let second = in_time().unwrap();
    assert_eq!(admission.in_flight(), (2, 1_050));
    let error = admission.admit(claim(1, 51), 1.0).unwrap_err();
    assert!(matches!(error, Error::QuotaExceeded { in_flight: 1_050, .. }), "{error}");
    // More than was counted.
    first.computed(10 * COMPUTED_AT_ONCE);
    drop((first, second));
    assert_eq!(admission.in_flight(), (0, 0));
}

/// Another engine, which may have begun under other settings, gives nobody more room.
#[tokio::test]
async fn engines_have_their_bounds_together() {
    let ledger = Arc::<Ledger>::default();
    let [one, other] = [sharing(ledger.clone(), 100, 60), sharing(ledger.clone(), 90, 50)];
    let mut first = one.admit(claim(1, 40), 1.0).unwrap();
    let refused = other.admit(claim(1, 20), 1.0).unwrap_err();
    assert!(matches!(refused, Error::QuotaExceeded { in_flight: 40, limit: 50, .. }));
    let second = other.admit(claim(2, 50), 1.0).unwrap();
    assert!(matches!(one.admit(claim(3, 20), 1.0), Err(Error::Overloaded { in_flight: 90, .. })));
    assert_eq!((one.in_flight(), other.in_flight()), ((1, 40), (1, 50)));
    // Who waits for room in one is told of what is given back in the other.
    let waiting = tokio::spawn(async move { other.admit_when_free(claim(1, 20)).await });
    tokio::task::yield_now().await;
    first.settle(turned_out(40, 10));
    let third = waiting.await.unwrap().unwrap();
    drop((first, second, third));
    one.admit(claim(1, 60), 1.0).unwrap();
}

/// However many take what they get, the next one finds room.
#[test]
fn users_leave_room_for_others() {
    let admission = admission(120, 120);
    let all_that_fits = |uid| {
        let next = || admission.admit(claim(uid, 1), 1.0).ok();
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    let mut held: Vec<Vec<Permit>> = vec![all_that_fits(0)];
    assert_eq!(held[0].len(), 120, "one alone has all");
    // Beside the next ones no more, as soon as it gives back.
    held[0].truncate(60);
    for uid in 1..5 {
        held.push(all_that_fits(uid));
        assert!(held.last().is_some_and(|permits| !permits.is_empty()));
    }
    let refused = admission.admit(claim(0, 1), 1.0).unwrap_err();
    assert!(matches!(refused, Error::QuotaExceeded { in_flight: 60, .. }), "{refused}");
    for _ in 0..100 {
        for (uid, permits) in held.iter_mut().enumerate() {
            permits.pop();
            permits.extend(all_that_fits(uid as u32));
        }
    }
    // Each a sixth.
    let shares = held.iter().map(Vec::len).collect::<Vec<_>>();
    assert!(shares.iter().all(|share| (15..=25).contains(share)), "{shares:?}");
}

#[test]
fn what_can_never_fit_is_too_large() {
    let admission = admission(100, 60);
    for tokens in [61, 101, usize::MAX] {
        assert!(matches!(admission.admit(claim(1, tokens), 1.0), Err(Error::TooLarge { .. })));
    }
}

#[tokio::test]
async fn who_waits_is_admitted_once_there_is_room() {
    let admission = admission(100, 60);
    let first = admission.admit(claim(1, 60), 1.0).unwrap();
    let waiting = tokio::spawn({
        let admission = Arc::clone(&admission);
        async move { admission.admit_when_free(claim(1, 50)).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    drop(first);
    let _second = waiting.await.unwrap().unwrap();
    assert_eq!(admission.in_flight(), (1, 50));
    let never = admission.admit_when_free(claim(1, 61)).await;
    assert!(matches!(never, Err(Error::TooLarge { .. })));
    let refused = admission.admit_when_free(claim(1, 50));
    let close = async { admission.close() };
    let (refused, ()) = tokio::join!(refused, close);
    assert_eq!(refused.unwrap_err(), Error::ShuttingDown);
}

#[test]
fn closed_means_shutting_down() {
    let admission = admission(100, 60);
    admission.close();
    assert_eq!(admission.admit(claim(1, 1), 1.0).unwrap_err(), Error::ShuttingDown);
    assert_eq!(admission.admit_own().unwrap_err(), Error::ShuttingDown);
}

#[test]
fn a_text_costs_what_it_may_become() {
    assert_eq!(cost(0, Truncate::End, 2, 256), 2);
    assert_eq!(cost(10, Truncate::End, 2, 256), 12);
    assert_eq!(cost(4096, Truncate::End, 2, 256), 256);
    assert_eq!(cost(1 << 20, Truncate::End, 2, 256), 1 << 15);
    assert_eq!(work(1 << 20, Truncate::End, 2, 256), 256, "what is cut off is not computed");
    for (bytes, windows) in [(0, 1), (254, 1), (255, 2), (508, 2), (509, 3)] {
        assert_eq!(cost(bytes, Truncate::Mean, 2, 256), bytes + windows * 2, "{bytes}");
    }
}
