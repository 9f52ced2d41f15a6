//! Numbers out of JSON, flat or nested; its length bounds them.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// Lists within lists beyond which no tensor goes.
const DEPTH_MAX: usize = 4;

/// Appends the numbers of a list, or of lists of lists in their order.
pub struct Numbers<'a> {
    into: &'a mut Vec<f32>,
    depth: usize,
}

impl<'a> Numbers<'a> {
    /// Numbers for `into`.
    pub fn new(into: &'a mut Vec<f32>) -> Self {
        Self { into, depth: 0 }
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for Numbers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Numbers<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.into.push(number as f32);
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.into.push(number as f32);
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.into.push(number as f32);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.depth >= DEPTH_MAX {
            return Err(A::Error::custom("lists within lists within lists"));
        }
        let Self { into, depth } = self;
        while list.next_element_seed(Numbers { into, depth: depth + 1 })?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeSeed;

    use super::*;

    fn read(json: &str) -> Result<Vec<f32>, serde_json::Error> {
        let mut numbers = Vec::new();
        let mut json = serde_json::Deserializer::from_str(json);
        Numbers::new(&mut numbers).deserialize(&mut json)?;
        Ok(numbers)
    }

    #[test]
    fn lists_are_flattened() {
        assert_eq!(read("[[1, -2.5], [3e0, 4]]").unwrap(), [1.0, -2.5, 3.0, 4.0]);
        assert_eq!(read("[]").unwrap(), [0.0; 0]);
        for wrong in ["[null]", "[\"1\"]", "{}", "[[[[[1]]]]]", "[NaN]", "[1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
