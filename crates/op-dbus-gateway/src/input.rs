//! What a request has to be embedded: texts, token ids, or some of both.

use serde::Deserialize;

use crate::limits;
use crate::refusal::Refusal;

/// What may stand in a request to be embedded.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "the input must be a text, a list of texts, a list of token ids, or a list of texts and such lists"
)]
pub enum Input {
    /// One text.
    Text(String),
    /// Several.
    Texts(Vec<String>),
    /// One text as token ids of the model that serves.
    Tokens(Vec<u32>),
    /// Several.
    TokenLists(Vec<Vec<u32>>),
    /// Some as texts, some as token ids.
    Mixed(Vec<One>),
}

/// One of several inputs of either kind.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum One {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// What is embedded: a vector for each text and list.
#[derive(Default)]
pub struct Inputs {
    /// Texts.
    pub texts: Vec<String>,
    /// Token ids of the model that serves.
    pub lists: Vec<Vec<u32>>,
    /// The place of each in the request, first of the texts, then of the lists, where there are both.
    pub places: Vec<usize>,
    /// What the request calls the first text, where that stands beside the list of the others.
    beside: Option<&'static str>,
}

impl TryFrom<Input> for Inputs {
    type Error = Refusal;

    fn try_from(input: Input) -> Result<Self, Refusal> {
        let inputs = match input {
            Input::Text(text) => Self::texts(vec![text])?,
            Input::Texts(texts) => Self::texts(texts)?,
            Input::Tokens(ids) => Self { lists: vec![ids], ..Self::default() },
            Input::TokenLists(lists) => Self { lists, ..Self::default() },
            Input::Mixed(all) => Self::mixed(all)?,
        };
        if inputs.len() == 0 {
            return Err(Refusal::empty("the input is an empty list; send at least one text"));
        }
        Ok(inputs)
    }
}

impl Inputs {
    /// Texts that can travel on the bus.
    ///
    /// # Errors
    /// As [`check_texts`].
    pub fn texts(texts: Vec<String>) -> Result<Self, Refusal> {
        check_texts(&texts)?;
        Ok(Self { texts, ..Self::default() })
    }

    /// A text that the request calls `name`, and the `texts` that it is compared with.
    ///
    /// # Errors
    /// As [`check_texts`].
    pub fn compared(
        name: &'static str,
        first: String,
        texts: Vec<String>,
    ) -> Result<Self, Refusal> {
        if first.contains('\0') {
            return Err(no_zero(name));
        }
        check_texts(&texts)?;
        let texts = std::iter::once(first).chain(texts).collect();
        Ok(Self { texts, beside: Some(name), ..Self::default() })
    }

    /// What the request calls an input, by its number in the calls: first come the texts, then the lists.
    pub fn name(&self, number: usize) -> String {
        let place = self.places.get(number).copied().unwrap_or(number);
        match (self.beside, place.checked_sub(1)) {
            (None, _) => format!("text {place}"),
            (Some(name), None) => name.to_owned(),
            (Some(_), Some(place)) => format!("text {place}"),
        }
    }

    /// No call on the bus takes both kinds.
    fn mixed(all: Vec<One>) -> Result<Self, Refusal> {
        let mut inputs = Self::default();
        let mut behind = Vec::new();
        for (place, one) in all.into_iter().enumerate() {
            match one {
                One::Text(text) if text.contains('\0') => {
                    return Err(no_zero(&format!("text {place}")));
                }
                One::Text(text) => {
                    inputs.texts.push(text);
                    inputs.places.push(place);
                }
                One::Tokens(ids) => {
                    inputs.lists.push(ids);
                    behind.push(place);
                }
            }
        }
        inputs.places.append(&mut behind);
        Ok(inputs)
    }

    /// How many vectors there will be.
    pub fn len(&self) -> usize {
        self.texts.len() + self.lists.len()
    }

    /// What it counts as among the texts in flight: long lists of token ids for more than one text each.
    pub fn weight(&self) -> usize {
        let ids: usize = self.lists.iter().map(Vec::len).sum();
        self.len().max(ids / limits::IDS_PER_TEXT)
    }
}

/// Refuses texts that can't travel on the bus.
///
/// # Errors
/// It has a character that ends strings there.
pub fn check_texts(texts: &[String]) -> Result<(), Refusal> {
    match texts.iter().position(|text| text.contains('\0')) {
        Some(index) => Err(no_zero(&format!("text {index}"))),
        None => Ok(()),
    }
}

/// Strings on the bus end at a zero.
pub fn no_zero(what: &str) -> Refusal {
    Refusal::invalid(format!(
        "{what} has the character U+0000, which the bus can't carry; leave it out"
    ))
}
