//! Where a session's operators really ran, from the runtime's own profile of one batch.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Parts of the names of operators that are the work of an encoder, in all their kinds: fused, packed, of 8 and
/// of 4 bits. What a provider leaves to the CPU beside them, shapes and lengths, costs nothing.
const HEAVY: [&str; 6] = ["MatMul", "Gemm", "Attention", "LayerNormalization", "Softmax", "Conv"];

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    cat: String,
    #[serde(default)]
    args: Arguments,
}

#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(default)]
    provider: String,
    #[serde(default)]
    op_name: String,
}

/// What ran on a provider, and which of the heavy operators did not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Nodes that the provider computed; a provider may make one node of many.
    pub here: usize,
    /// Heavy nodes that another computed, by operator.
    pub elsewhere: BTreeMap<String, usize>,
}

impl Placement {
    /// Reads a profile that the runtime has written.
    ///
    /// # Errors
    /// It is not a profile.
    pub fn read(profile: &[u8], provider: &str) -> serde_json::Result<Self> {
        let events: Vec<Event> = serde_json::from_slice(profile)?;
        let mut placement = Self { here: 0, elsewhere: BTreeMap::new() };
        for Event { cat, args } in events {
            match (cat.as_str(), args.provider.as_str()) {
                ("Node", ran) if ran == provider => placement.here += 1,
                ("Node", ran) if !ran.is_empty() && is_heavy(&args.op_name) => {
                    *placement.elsewhere.entry(args.op_name).or_default() += 1;
                }
                _ => {}
            }
        }
        Ok(placement)
    }

    /// Why this is not what was asked for; nothing if it is.
    pub fn problem(&self) -> Option<String> {
        if self.here > 0 && self.elsewhere.is_empty() {
            return None;
        }
        let left: Vec<String> =
            self.elsewhere.iter().map(|(name, count)| format!("{count} {name}")).collect();
        Some(match self.here {
            0 => format!(
                "it took none of the model's operators; the CPU computed {}",
                left.join(", ")
            ),
            here => format!("it took {here} operators and left to the CPU {}", left.join(", ")),
        })
    }
}

fn is_heavy(operator: &str) -> bool {
    HEAVY.iter().any(|part| operator.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(nodes: &[(&str, &str)]) -> Placement {
        let node = |(provider, op_name): &(&str, &str)| serde_json::json!({ "cat": "Node", "args": { "provider": provider, "op_name": op_name } });
        let mut events: Vec<_> = nodes.iter().map(node).collect();
        events.push(serde_json::json!({ "cat": "Session", "name": "model_loading" }));
        Placement::read(&serde_json::to_vec(&events).unwrap(), "Gpu").unwrap()
    }

    #[test]
    fn what_matters_has_to_run_on_the_provider() {
        let right = [("Gpu", "MatMul"), ("Cpu", "Shape"), ("Gpu", "Softmax")];
        assert_eq!(placement(&right).problem(), None);
        let none = placement(&[("Cpu", "MatMul"), ("Cpu", "MatMul"), ("Cpu", "Shape")]);
        assert!(none.problem().unwrap().contains("none of the model's operators"));
        assert!(none.problem().unwrap().contains("2 MatMul"));
        let half = placement(&[("Gpu", "MatMul"), ("Cpu", "Softmax")]);
        assert_eq!(half.problem().unwrap(), "it took 1 operators and left to the CPU 1 Softmax");
        let dynamic =
            [("Gpu", "MatMul"), ("Cpu", "MatMulInteger"), ("Cpu", "DynamicQuantizeLinear")];
        let problem = placement(&dynamic).problem().unwrap();
        assert_eq!(problem, "it took 1 operators and left to the CPU 1 MatMulInteger");
        assert!(placement(&[]).problem().is_some());
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        assert!(Placement::read(b"[{", "Gpu").is_err());
    }
}
