//! A batch that is begun while another one is computed.

use super::*;

const NEXT: Batch<'_> = Batch { ids: &[9, 10, 11], lengths: &[1, 1, 1] };

fn expected(batch: &Batch<'_>) -> Vec<f32> {
    let mut out = vec![0.0; batch.rows() * SHAPE.dimensions];
    sim().unwrap().run(batch, &mut out).unwrap();
    out
}

/// Runs `BATCH`, and begins `NEXT` meanwhile.
fn begin_next(link: &mut Link) -> Vec<f32> {
    let (mut out, mut begun) = (vec![f32::NAN; 8], false);
    link.run_while(&BATCH, &mut out, &mut |begin| begun = begin(&NEXT)).unwrap();
    assert!(begun);
    out
}

#[test]
fn a_batch_that_was_begun_comes_next() {
    let (link, worker) = link(PATIENT, |socket| serve_on(socket.as_fd(), "none", sim));
    let mut link = link.unwrap().0;
    for _ in 0..3 {
        assert_eq!(begin_next(&mut link), expected(&BATCH));
        let mut out = vec![f32::NAN; 12];
        // And another one beside that.
        link.run_while(&NEXT, &mut out, &mut |begin| assert!(begin(&BATCH))).unwrap();
        assert_eq!(out, expected(&NEXT));
        let mut out = vec![f32::NAN; 8];
        run(&mut link, &BATCH, &mut out).unwrap();
        assert_eq!(out, expected(&BATCH));
    }
    drop(link);
    worker.join().unwrap().unwrap();
}

#[test]
fn a_batch_that_was_begun_can_be_let_go() {
    let (link, worker) = link(PATIENT, |socket| serve_on(socket.as_fd(), "none", sim));
    let mut link = link.unwrap().0;
    begin_next(&mut link);
    link.forget_begun().unwrap();
    link.forget_begun().unwrap();
    link.trim().unwrap();
    let mut out = vec![f32::NAN; 8];
    run(&mut link, &BATCH, &mut out).unwrap();
    assert_eq!(out, expected(&BATCH));
    begin_next(&mut link);
    lost_because(&run(&mut link, &BATCH, &mut out).unwrap_err(), "another batch was begun");
    drop(link);
    // It may have found nobody to answer.
    let _ = worker.join().unwrap();
}

#[test]
fn what_does_not_fit_is_not_begun() {
    let (link, worker) = link(PATIENT, |socket| serve_on(socket.as_fd(), "none", sim));
    let mut link = link.unwrap().0;
    let wide = Batch { ids: &[1; 65], lengths: &[65] };
    let mut begun = true;
    link.run_while(&BATCH, &mut [0.0; 8], &mut |begin| begun = begin(&wide)).unwrap();
    assert!(!begun);
    run(&mut link, &BATCH, &mut [0.0; 8]).unwrap();
    drop(link);
    worker.join().unwrap().unwrap();
}

#[test]
fn answers_that_nobody_asked_for_are_a_lost_worker() {
    for said in [vec![done(3)], vec![done(2), done(1)], vec![ready()]] {
        let (link, worker) = link(PATIENT, move |socket| {
            until_asked(&socket);
            let _: Request = receive_message(&socket, None).unwrap();
            said.iter().for_each(|answer| send_message(&socket, answer).unwrap());
        });
        let mut link = link.unwrap().0;
        let begin = &mut |begin: &mut Begin<'_>| assert!(begin(&NEXT));
        let error = link.run_while(&BATCH, &mut [0.0; 8], begin).unwrap_err();
        lost_because(&error, "did not answer to batch 1");
        worker.join().unwrap();
    }
}

#[test]
fn an_answer_is_taken_of_a_worker_that_left_the_next_batch_unread() {
    let (begun, both) = channel();
    let (link, worker) = link(PATIENT, move |socket| {
        until_asked(&socket);
        both.recv().unwrap();
        send_message(&socket, &done(1)).unwrap();
    });
    let mut link = link.unwrap().0;
    let mut out = [0.0; 8];
    let mut worker = Some(worker);
    let mut meanwhile = |begin: &mut Begin<'_>| {
        assert!(begin(&NEXT));
        begun.send(()).unwrap();
        // It has hung up when its answer is looked for.
        worker.take().unwrap().join().unwrap();
    };
    link.run_while(&BATCH, &mut out, &mut meanwhile).unwrap();
    lost_because(&run(&mut link, &NEXT, &mut [0.0; 12]).unwrap_err(), "closed its socket");
}

/// What it has not read may be the batch that was begun: the one before it is no text that nobody has tried.
#[test]
fn a_worker_that_leaves_two_batches_has_read_one_perhaps() {
    let (begun, both) = channel();
    let (link, worker) = link(PATIENT, move |socket| {
        until_asked(&socket);
        both.recv().unwrap();
    });
    let mut link = link.unwrap().0;
    let mut meanwhile = |begin: &mut Begin<'_>| {
        assert!(begin(&NEXT));
        begun.send(()).unwrap();
    };
    let error = link.run_while(&BATCH, &mut [0.0; 8], &mut meanwhile).unwrap_err();
    assert!(matches!(error, BackendError::Lost(_)), "{error}");
    assert!(!link.has_read_nothing);
    worker.join().unwrap();
}
