//! Endpoints that are sent texts, which are made of token ids.

use std::time::Duration;

use op_dbus_engine::{Backend, BackendError, Batch};
use op_dbus_remote::RemoteBackend;

use crate::played::{DIMENSIONS, Endpoint, Mood, of_texts};

/// A text of one letter.
const WHOLE: [i32; 3] = [2, 28, 3];
/// A word's end alone, of which no text is made again.
const CUT: [i32; 3] = [2, 54, 3];

fn run(backend: &mut RemoteBackend, rows: &[[i32; 3]]) -> Result<String, BackendError> {
    let mut out = vec![f32::NAN; rows.len() * DIMENSIONS];
    let lengths = vec![3; rows.len()];
    backend.run(&Batch { ids: rows.as_flattened(), lengths: &lengths }, &mut out)?;
    assert_eq!(out, [0.0, 1.0, 0.0, 0.0].repeat(rows.len()));
    Ok(backend.description().device.clone())
}

/// The engine halves what was too large, and has each row of what failed computed by itself.
#[test]
fn a_text_that_cannot_be_made_again_leaves_its_neighbours_together() {
    let one = Endpoint::new(Mood::Well);
    let mut backend = of_texts(&[&one]);
    let error = run(&mut backend, &[WHOLE, CUT, WHOLE]).unwrap_err();
    assert!(matches!(error, BackendError::OutOfMemory(_)), "{error:?}");
    let error = run(&mut backend, &[CUT]).unwrap_err();
    assert!(matches!(error, BackendError::Failed(_)), "{error:?}");
    assert_eq!(one.asked().1, 0);
    assert_eq!(run(&mut backend, &[WHOLE, WHOLE]).unwrap(), "remote:0");
    assert_eq!(one.asked().1, 1);
}

/// It has a second to begin.
#[test]
fn one_that_has_failed_and_takes_its_time_for_long_texts_comes_back() {
    let (one, two) = (Endpoint::new(Mood::Well), Endpoint::new(Mood::Well));
    let mut backend = of_texts(&[&one, &two]);
    one.set(Mood::All(503));
    assert_eq!(run(&mut backend, &[WHOLE]).unwrap(), "remote:1");
    one.set(Mood::SlowIfLong(Duration::from_millis(1500)));
    while run(&mut backend, &[WHOLE]).unwrap() != "remote:0" {}
}
