//! The texts of a call, its lists of token ids or its devices, of which none is kept where they are too many: made of a
//! message each takes several times its bytes, which nobody counts as long as the call waits.

use std::fmt;
use std::marker::PhantomData;

use op_dbus_api::Error;
use op_dbus_engine::{Error as EngineError, Excess, Limits};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use zbus::{Signature, Type};

use crate::service::Error as ServiceError;

/// What a call may have `texts_per_call_max` of.
#[derive(Debug)]
pub struct Many<T> {
    /// All of them, or none where they are too many.
    pub kept: Vec<T>,
    /// How many there are.
    pub count: usize,
}

impl Many<String> {
    /// All of them.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn all(self) -> Result<Vec<String>, Error> {
        self.within(Excess::Texts)
    }
}

impl<T> Many<T> {
    /// All of them, which are called what their `excess` says.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn within(self, excess: Excess) -> Result<Vec<T>, Error> {
        let (found, limit) = (self.count, most());
        match found <= limit {
            true => Ok(self.kept),
            false => Err(ServiceError::from(EngineError::TooLarge { excess, found, limit }).into()),
        }
    }
}

fn most() -> usize {
    Limits::default().texts_per_call_max
}

impl<T: Type> Type for Many<T> {
    const SIGNATURE: &'static Signature = <Vec<T> as Type>::SIGNATURE;
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Counted(PhantomData))
    }
}

/// Reads all, as more arguments may follow.
struct Counted<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Counted<T> {
    type Value = Many<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("texts, or lists of token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
        let (mut kept, mut count) = (Vec::new(), 0);
        while let Some(one) = all.next_element()? {
            count += 1;
            if count <= most() {
                kept.push(one);
            } else {
                kept = Vec::new();
            }
        }
        Ok(Many { kept, count })
    }
}

#[cfg(test)]
mod tests {
    use op_dbus_api::ErrorName;
    use zbus::wire::serialized::Context;
    use zbus::wire::{LE, to_bytes};

    use super::*;

    #[test]
    fn of_too_many_none_is_kept_and_what_follows_is_read() {
        for (count, fits) in [(0, true), (most(), true), (most() + 1, false), (100_000, false)] {
            let sent = (vec!["x"; count], "what follows");
            let bytes = to_bytes(Context::new(LE, 0), &sent).unwrap();
            let (read, _) = bytes.deserialize().unwrap();
            let (many, next): (Many<String>, &str) = read;
            assert_eq!(next, "what follows");
            assert_eq!((many.count, many.kept.capacity() >= count), (count, fits));
            match many.all() {
                Ok(texts) => assert_eq!((texts.len(), fits), (count, true)),
                Err(error) => assert_eq!((error.name(), fits), (ErrorName::TooLarge, false)),
            }
        }
    }

    #[test]
    fn lists_of_token_ids_that_are_too_many_are_called_that() {
        let sent = vec![vec![1_u32]; most() + 1];
        let bytes = to_bytes(Context::new(LE, 0), &sent).unwrap();
        let (many, _): (Many<Vec<u32>>, _) = bytes.deserialize().unwrap();
        let error = many.within(Excess::Lists).unwrap_err();
        let told = "the number of lists of token ids in the call is 16385, the limit is 16384; \
                    send the lists in several calls";
        assert_eq!((error.name(), error.message()), (ErrorName::TooLarge, told));
    }
}
