//! Shapes of a graph's inputs, for which a provider compiles ahead: `input_ids:1x8,lengths:1`.

use std::collections::BTreeMap;

use super::super::kind::digits;

/// The options in which shapes stand, smallest first.
const KEYS: [&str; 3] =
    ["trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes"];

/// Longest side that makes sense: texts of a batch, or tokens of a text.
const SIDE_MAX: u64 = 1 << 20;

/// What is accepted, for people.
pub const ACCEPTED: &str = "inputs with their shapes, such as `input_ids:1x8,lengths:1`";

/// Whether a text has the form.
pub fn is_right(text: &str) -> bool {
    parse(text).is_some()
}

/// Shapes by the name of the input, each once.
fn parse(text: &str) -> Option<BTreeMap<&str, Vec<u64>>> {
    let mut shapes = BTreeMap::new();
    for part in text.split(',') {
        let (name, shape) = part.split_once(':')?;
        let letters = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
        if name.is_empty() || !name.chars().all(letters) {
            return None;
        }
        let side = |side| digits(side).filter(|side| (1..=SIDE_MAX).contains(side));
        let shape: Vec<u64> = shape.split('x').map(side).collect::<Option<_>>()?;
        if shapes.insert(name, shape).is_some() {
            return None;
        }
    }
    Some(shapes)
}

/// Two of which TensorRT takes one.
const PRECISIONS: [&str; 2] = ["trt_fp16_enable", "trt_bf16_enable"];

/// Why options don't go together: both precisions, or shapes that are not all or none of the three, for the
/// same inputs, in order of size.
pub fn contradiction(checked: &BTreeMap<String, String>) -> Option<String> {
    if PRECISIONS.iter().all(|key| checked.get(*key).is_some_and(|value| value == "true")) {
        return Some(format!("{} are both true; set one of them", PRECISIONS.join(" and ")));
    }
    let said: Vec<_> = KEYS.iter().filter_map(|key| Some((key, checked.get(*key)?))).collect();
    if said.is_empty() {
        return None;
    }
    if said.len() < KEYS.len() {
        let missing = KEYS.into_iter().filter(|key| !checked.contains_key(*key));
        let missing: Vec<&str> = missing.collect();
        return Some(format!(
            "{} is set without {}; TensorRT needs all three or none",
            said[0].0,
            missing.join(" and ")
        ));
    }
    let shapes: Vec<_> = said.iter().filter_map(|(_, text)| parse(text)).collect();
    for (smaller, larger) in [(0, 1), (1, 2)] {
        for (name, least) in shapes.get(smaller)? {
            let most = shapes.get(larger)?.get(name);
            let fits = most.is_some_and(|most| {
                most.len() == least.len() && least.iter().zip(most).all(|(a, b)| a <= b)
            });
            if !fits || shapes[smaller].len() != shapes[larger].len() {
                return Some(format!(
                    "{} and {} must name the same inputs, each shape of the first no larger than \
                     that of the second; look at {name}",
                    KEYS[smaller], KEYS[larger]
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_names_and_sides() {
        assert!(is_right("input_ids:1x8,lengths:1"));
        for wrong in [
            "",
            "input_ids",
            "input_ids:",
            "input_ids:0x8",
            "input_ids:1x",
            ":1",
            "a:1,a:1",
            "a:1;b:2",
            "a:1 ,b:2",
            "a:4294967296",
            "a:1x-1",
            "a:+1x8",
        ] {
            assert!(!is_right(wrong), "{wrong}");
        }
    }

    fn contradiction_of(shapes: [&str; 3]) -> Option<String> {
        let said = KEYS.into_iter().zip(shapes).filter(|(_, text)| !text.is_empty());
        contradiction(&said.map(|(key, text)| (key.to_owned(), text.to_owned())).collect())
    }

    #[test]
    fn one_precision_at_most() {
        let of = |both: [&str; 2]| {
            let said = PRECISIONS.into_iter().zip(both);
            contradiction(&said.map(|(key, on)| (key.to_owned(), on.to_owned())).collect())
        };
        assert_eq!(of(["true", "false"]), None);
        assert_eq!(of(["false", "true"]), None);
        let both = of(["true", "true"]).unwrap();
        assert_eq!(both, "trt_fp16_enable and trt_bf16_enable are both true; set one of them");
    }

    #[test]
    fn three_go_together_or_none() {
        assert_eq!(contradiction_of(["", "", ""]), None);
        assert_eq!(contradiction_of(["a:1x8,b:1", "b:4,a:4x64", "a:4x512,b:4"]), None);
        let lone = contradiction_of(["", "a:1", ""]).unwrap();
        assert!(
            lone.starts_with("trt_profile_opt_shapes is set without trt_profile_min_shapes and")
        );
        for wrong in [["a:2", "a:1", "a:4"], ["a:1", "a:1", "b:4"], ["a:1", "a:1x1", "a:2"]] {
            assert!(contradiction_of(wrong).unwrap().ends_with("look at a"), "{wrong:?}");
        }
        assert!(contradiction_of(["a:1", "a:1,b:2", "a:1,b:2"]).is_some());
    }
}
