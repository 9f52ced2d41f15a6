//! What the table of settings says about each one.

use super::kind::Kind;
use super::layers::Place;

/// One setting.
#[derive(Debug)]
pub struct Row {
    /// The key in the files. `OP_DBUS_` and the key in capitals is the environment variable;
    /// two dashes and the key with dashes for underscores is the flag.
    pub key: &'static str,
    /// What is accepted.
    pub kind: Kind,
    /// The built-in value, in the form that a flag has.
    pub default: &'static str,
    /// The unit of a number; empty where there is none, or the number has it.
    pub unit: &'static str,
    /// What it does, one paragraph.
    pub doc: &'static str,
    /// The heading it stands under.
    pub group: Group,
    /// Where it may be set.
    pub scope: Scope,
}

/// Where a setting may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the files, by the environment and by flags.
    Any,
    /// There, and over the bus while the service runs: the state file keeps it then.
    Runtime,
    /// By the environment and by flags only: it says which files are read.
    Outside,
}

/// A heading in the configuration file and its documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// What is served.
    Model,
    /// On what it is computed.
    Provider,
    /// Files and the bus.
    Places,
    /// Batches and workers.
    Batching,
    /// Who may have how much.
    Admission,
    /// Loading and unloading, logs.
    Life,
    /// The program beside the service that answers HTTP.
    Gateway,
}

impl Group {
    /// All, in the order in which they are shown.
    pub const ALL: [Group; 7] = [
        Group::Model,
        Group::Provider,
        Group::Places,
        Group::Batching,
        Group::Admission,
        Group::Life,
        Group::Gateway,
    ];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Group::Model => "Model",
            Group::Provider => "Execution provider",
            Group::Places => "Files and bus",
            Group::Batching => "Batches and workers",
            Group::Admission => "Admission",
            Group::Life => "Lifecycle and logs",
            Group::Gateway => "HTTP gateway",
        }
    }
}

impl Row {
    /// What most have: nothing built in, no unit, set in files, by the environment and by flags.
    pub(super) const fn of(group: Group) -> Self {
        let (key, default, unit, doc) = ("", "", "", "");
        Self { key, kind: Kind::Bool, default, unit, doc, group, scope: Scope::Any }
    }

    /// `OP_DBUS_VECTOR_LEVEL` for `vector_level`.
    pub fn variable(&self) -> String {
        Place::Environment.spell(self.key)
    }

    /// `--vector-level` for `vector_level`.
    pub fn flag(&self) -> String {
        Place::Flags.spell(self.key)
    }

    /// `vector-level` for `vector_level`.
    pub fn long(&self) -> String {
        self.key.replace('_', "-")
    }
}
