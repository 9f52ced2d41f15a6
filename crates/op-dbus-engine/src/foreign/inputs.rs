//! Whether a graph can be fed: by the names, types and sides of its inputs.

use super::{Content, Integers};

/// An input that a graph has.
#[derive(Clone, Debug)]
pub struct InputPort<'a> {
    /// Its name.
    pub name: &'a str,
    /// The integers that it takes, if it takes any of ours.
    pub integers: Option<Integers>,
    /// Its sides, -1 where they vary; nothing where the graph does not state how many it has.
    pub sides: Option<Vec<i64>>,
    /// Its type, for people.
    pub shown: String,
}

/// An input, with what it is filled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// What it is filled with.
    pub content: Content,
    /// The integers that it takes.
    pub integers: Integers,
}

/// What the inputs of a graph are filled with, in the graph's order.
///
/// # Errors
/// A sentence naming an input that can't be filled, or that is lacking.
pub fn inputs(ports: &[InputPort<'_>]) -> Result<Vec<Input>, String> {
    let inputs: Vec<Input> = ports.iter().map(input).collect::<Result<_, _>>()?;
    let takes = |content| inputs.iter().any(|input| input.content == content);
    if !takes(Content::TokenIds) {
        return Err("the graph has no input input_ids, which token ids go to".to_owned());
    }
    if !takes(Content::AttentionMask) {
        return Err(
            "the graph has no input attention_mask; batches are padded, and without it a vector \
                    depends on the other texts of its batch"
                .to_owned(),
        );
    }
    Ok(inputs)
}

fn input(port: &InputPort<'_>) -> Result<Input, String> {
    let InputPort { name, integers, sides, shown } = port;
    // Lengths are what our own compiler's graphs want, and those are not run as a user's.
    let Some(content) = Content::of(name).filter(|content| *content != Content::Lengths) else {
        return Err(format!(
            "the graph wants an input {name}, which is not supported; supported: input_ids, \
             attention_mask, token_type_ids"
        ));
    };
    let Some(integers) = *integers else {
        return Err(format!("the input {name} is {shown}; only int32 and int64 are supported"));
    };
    match sides.as_deref() {
        None | Some([-1, -1]) => Ok(Input { name: (*name).to_owned(), content, integers }),
        Some(fixed) => Err(format!(
            "the input {name} has the shape {fixed:?}, and batches have any number of rows and of tokens; \
             export the graph with both of them as dynamic axes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port<'a>(name: &'a str, sides: &[i64]) -> InputPort<'a> {
        let (integers, sides) = (Some(Integers::I64), Some(sides.to_vec()));
        InputPort { name, integers, sides, shown: "shown".to_owned() }
    }

    #[test]
    fn inputs_are_known_by_name_type_and_sides() {
        let free: &[i64] = &[-1, -1];
        let mask = || port("attention_mask", free);
        let unstated = InputPort { sides: None, ..port("input_ids", free) };
        let short = InputPort { integers: Some(Integers::I32), ..port("token_type_ids", free) };
        let found = inputs(&[mask(), unstated, short]).unwrap();
        let found: Vec<_> = found.iter().map(|input| (input.content, input.integers)).collect();
        let expected = [
            (Content::AttentionMask, Integers::I64),
            (Content::TokenIds, Integers::I64),
            (Content::TokenTypes, Integers::I32),
        ];
        assert_eq!(found, expected);

        let floats = InputPort { integers: None, ..port("input_ids", free) };
        let cases = [
            (port("position_ids", free), "wants an input position_ids"),
            (port("lengths", &[-1]), "wants an input lengths"),
            (floats, "the input input_ids is shown; only int32 and int64"),
            (port("input_ids", &[1, 128]), "the input input_ids has the shape [1, 128]"),
            (port("input_ids", &[1, -1]), "has the shape [1, -1]"),
            (port("input_ids", &[-1, 128]), "has the shape [-1, 128]"),
            (port("input_ids", &[-1]), "has the shape [-1]"),
            (port("input_ids", &[]), "has the shape []"),
            (port("input_ids", free), "no input attention_mask"),
        ];
        for (wrong, why) in cases {
            let error = inputs(&[wrong]).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
        assert!(inputs(&[mask()]).unwrap_err().contains("no input input_ids"));
    }
}
