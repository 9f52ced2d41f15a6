//! What was found, for people and for programs.

use serde::Serialize;

use super::super::terminal::{Colour, paint, printable};
use super::check::{Check, Section, State};

/// Characters of one finding.
const FOUND_MAX: usize = 600;
/// What is said of a provider that lacks nothing, as far as can be seen.
const UNPROVED: &str = "nothing is missing";

/// Everything that was found.
#[derive(Serialize)]
pub struct Findings {
    /// Whether what the settings or the command line ask for would work; unknown where nothing is
    /// missing and nothing proved.
    pub works: Option<bool>,
    /// The one thing to do next, when it would not.
    pub next: Option<String>,
    /// The settings that this is about.
    pub execution_provider: String,
    /// The level of the model.
    pub vector_level: String,
    /// The service on the bus, and what all providers need.
    pub general: Vec<Check>,
    /// Each provider.
    pub providers: Vec<Section>,
}

impl Findings {
    /// Lines for people.
    pub fn text(&self, coloured: bool) -> String {
        let mut out = String::from("General\n");
        out.extend(self.general.iter().map(|check| line(check, coloured)));
        let (asked, others): (Vec<_>, Vec<_>) = self.providers.iter().partition(|one| one.asked);
        for section in asked {
            let verdict = match section.works {
                Some(true) => paint("works", Colour::Good, coloured),
                Some(false) => paint("does not work", Colour::Bad, coloured),
                None => paint(UNPROVED, Colour::Doubtful, coloured),
            };
            out.push_str(&format!("\n{}: {verdict}\n", section.provider));
            out.extend(section.checks.iter().map(|check| line(check, coloured)));
            out.extend(
                section.next.iter().map(|next| format!("  next: {}\n", printable(next, FOUND_MAX))),
            );
        }
        if !others.is_empty() {
            out.push_str("\nNot asked for (`op-dbus doctor PROVIDER` tells more)\n");
        }
        for section in others {
            let found = section.first_failure().map(|check| printable(&check.found, FOUND_MAX));
            let found = found.unwrap_or_else(|| UNPROVED.to_owned());
            out.push_str(&format!("  {:<10} {found}\n", section.provider));
        }
        let asked = format!(
            "execution_provider {}, vector_level {}",
            self.execution_provider, self.vector_level
        );
        out.push_str(&match &self.next {
            None if self.works == Some(true) => {
                format!("\n{}: {asked}\n", paint("All is well", Colour::Good, coloured))
            }
            None => format!("\nNothing is missing, and nothing was proved: {asked}\n"),
            Some(next) => {
                let next = printable(next, FOUND_MAX);
                format!("\n{}: {next}\n", paint("What to do next", Colour::Doubtful, coloured))
            }
        });
        out
    }
}

fn line(check: &Check, coloured: bool) -> String {
    let colour = match check.state {
        State::Ok => Colour::Good,
        State::Missing | State::Wrong => Colour::Bad,
        State::Unchecked => Colour::Faint,
    };
    let state = paint(format!("{:<7}", check.state.word()), colour, coloured);
    format!("  {state}  {:<10}  {}\n", check.check, printable(&check.found, FOUND_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let missing = Check::missing("driver", "no \u{1b}driver", "install it");
        let section = |asked| Section::new("cuda".to_owned(), asked, vec![missing.clone()]);
        Findings {
            works: Some(false),
            next: Some("install it".to_owned()),
            execution_provider: "cuda".to_owned(),
            vector_level: "low".to_owned(),
            general: vec![Check::ok("model", "m")],
            providers: vec![section(true), section(false)],
        }
    }

    #[test]
    fn people_read_states_findings_and_the_next_step() {
        let expected = "\
General
  ok       model       m

cuda: does not work
  missing  driver      no ·driver
  next: install it

Not asked for (`op-dbus doctor PROVIDER` tells more)
  cuda       no ·driver

What to do next: install it
";
        assert_eq!(findings().text(false), expected);
    }

    #[test]
    fn programs_read_the_same() {
        let json = serde_json::to_value(findings()).unwrap();
        assert_eq!(json["works"], false);
        assert_eq!(json["providers"][0]["checks"][0]["state"], "missing");
        assert_eq!(json["providers"][0]["checks"][0]["next"], "install it");
        assert!(json["general"][0].get("next").is_none());
    }
}
