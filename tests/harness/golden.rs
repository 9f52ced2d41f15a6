//! The texts with their reference vectors, and how far two vectors are apart.

use std::fs;

pub use op_dbus_api::cosine;
use serde_json::Value;

use super::{Outcome, fixture};

/// A text with a name that says what is special about it.
pub struct Text {
    pub name: String,
    pub text: String,
}

/// The texts of `golden/texts.json`, in order.
pub fn texts() -> Outcome<Vec<Text>> {
    let entries: Vec<Value> = serde_json::from_str(&fs::read_to_string(path("texts"))?)?;
    let field = |entry: &Value, key: &str| entry[key].as_str().map(str::to_owned);
    let read = |entry| Some(Text { name: field(entry, "name")?, text: field(entry, "text")? });
    entries.iter().map(read).collect::<Option<_>>().ok_or("texts.json is malformed".into())
}

/// The texts alone.
pub fn plain_texts() -> Outcome<Vec<String>> {
    Ok(texts()?.into_iter().map(|text| text.text).collect())
}

/// The reference vector of each text at `level`, in the order of [`texts`].
pub fn vectors(level: &str) -> Outcome<Vec<Vec<f32>>> {
    let file: Value = serde_json::from_str(&fs::read_to_string(path(level))?)?;
    let read = |text: Text| -> Outcome<Vec<f32>> {
        let vector = &file["vectors"][&text.name];
        Ok(floats(vector).ok_or("a text has no vector")?)
    };
    texts()?.into_iter().map(read).collect()
}

/// An array of numbers as the vector that it was. Parsed doubles may be off by their last digit,
/// the floats that were sent as such are not.
pub fn floats(numbers: &Value) -> Option<Vec<f32>> {
    numbers.as_array()?.iter().map(|number| Some(number.as_f64()? as f32)).collect()
}

fn path(name: &str) -> std::path::PathBuf {
    fixture(&format!("golden/{name}.json"))
}

/// Each vector is what is expected of it: their cosine is `least` at least.
#[track_caller]
pub fn assert_near<V: AsRef<[f32]>, W: AsRef<[f32]>>(
    found: impl IntoIterator<Item = V>,
    expected: impl IntoIterator<Item = W>,
    least: f64,
) {
    let (found, expected): (Vec<V>, Vec<W>) =
        (found.into_iter().collect(), expected.into_iter().collect());
    assert_eq!(found.len(), expected.len());
    for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let cosine = cosine(found.as_ref(), expected.as_ref());
        assert!(cosine >= least, "vector {row}: {cosine}");
    }
}

/// Largest difference of two components; infinite when the lengths differ, or one is no number.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    let differences = a.iter().zip(b).map(|(x, y)| (x - y).abs());
    differences.fold(0.0, |most, one| if one.is_nan() { f32::INFINITY } else { most.max(one) })
}
