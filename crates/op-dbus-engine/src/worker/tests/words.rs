//! What a worker says goes into replies, onto lines of the log and to the service manager.

use super::super::protocol::Failure;
use super::*;

#[test]
fn a_device_with_a_long_name_is_a_lost_worker() {
    let answer = |socket: &OwnedFd| {
        send_message(socket, &done_on(1, &"x".repeat(4096))).unwrap();
    };
    lost_because(&run_with(PATIENT, answer), "a name of 4096 bytes");
}

/// With a line break it would be two lines, and with U+0000 no message of D-Bus.
#[test]
fn a_name_with_control_characters_is_refused() {
    for device in ["cpu:0\nX", "cpu\0"] {
        let moved = move |socket: &OwnedFd| send_message(socket, &done_on(1, device)).unwrap();
        lost_because(&run_with(PATIENT, moved), &format!("the name {device:?}"));
    }
    let names: [fn(&mut Description) -> &mut String; 5] = [
        |told| &mut told.provider,
        |told| &mut told.device,
        |told| &mut told.precision,
        |told| &mut told.engine,
        |told| &mut told.isa,
    ];
    for name in names {
        let error = load_with(move |socket| {
            let mut description = sim().unwrap().description().clone();
            name(&mut description).push_str("\nMAINPID=1");
            send_message(socket, &Answer::Ready { description }).unwrap();
        });
        assert!(error.to_string().contains("none has control characters"), "{error}");
    }
}

#[test]
fn what_a_worker_says_in_words_is_told_on_one_line() {
    let (link, worker) = link(PATIENT, |socket| serve_on(socket.as_fd(), "none\nX", sim));
    let (link, description) = link.unwrap();
    assert_eq!(description.sandbox, "none X");
    drop(link);
    worker.join().unwrap().unwrap();

    let words = "x\nMAINPID=1\0".repeat(400);
    let answer = Answer::Unloadable { kind: LoadErrorKind::Other, message: words.clone() };
    let unloadable = load_with(move |socket| send_message(socket, &answer).unwrap());
    let answer = Answer::Failed { number: 1, failure: Failure::Failed, message: words };
    let failed = run_with(PATIENT, move |socket| send_message(socket, &answer).unwrap());
    // Quoted by who reads it.
    let said = br#""x\nMAINPID=1""#;
    let unread = load_with(move |socket| send_raw(socket, said));
    let unanswered = run_with(PATIENT, move |socket| send_raw(socket, said));
    for error in [unloadable, failed, unread, unanswered] {
        let told = error.to_string();
        assert!(told.contains("x MAINPID=1") && !told.contains(char::is_control), "{told}");
        assert!(told.len() < 1200, "{}", told.len());
    }
}
