//! The pinned runtime libraries and provider libraries, as data: `libraries.toml`, read once.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::{Error, FileRecord};

/// The shared libraries that one Python package carries: an ONNX Runtime with the providers that are
/// built into it, or a plugin provider library for one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// The package's name, as pip knows it.
    pub package: String,
    /// Its exact version, which is the library's.
    pub version: String,
    /// The folder of the wheel that the files lie in.
    #[serde(default)]
    pub folder: String,
    /// The file that is loaded or registered; it finds the others by itself.
    pub load: String,
    /// How a plugin provider library is registered; none for a runtime.
    pub plugin: Option<Plugin>,
    /// The providers that it computes with.
    pub providers: Vec<Provider>,
    /// Its files, for each processor that it is built for.
    pub builds: Vec<Build>,
}

/// How a plugin provider library gets into a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plugin {
    /// The provider whose runtime it is registered with.
    pub host: String,
    /// The name to register it under. Some libraries take it for the name of their execution
    /// provider, and some see an option in another than the usual one.
    pub register_as: String,
}

/// A provider that a library computes with.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Its name, as the settings have it.
    pub name: String,
    /// Other names for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What ONNX Runtime calls it, in its list of devices and in the placement of nodes.
    pub execution_provider: String,
    /// The kinds of devices that it may have: `cpu`, `gpu`, `npu`.
    pub devices: Vec<String>,
    /// What must be on the machine besides the library; empty when nothing must.
    #[serde(default)]
    pub needs: String,
}

/// A library for one kind of processor.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// As `std::env::consts::ARCH` has it.
    pub arch: String,
    /// What pip is told with `--platform`.
    pub platform: String,
    /// Every file that loading needs, by its path below the library's folder.
    pub files: Vec<FileRecord>,
}

/// A provider that no package has a library of for this system.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    /// The one system that has it.
    system: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Libraries {
    auto: Vec<String>,
    libraries: Vec<Library>,
    elsewhere: Vec<Elsewhere>,
}

static LIBRARIES: LazyLock<Libraries> = LazyLock::new(|| {
    toml::from_str(include_str!("libraries.toml"))
        .expect("the list of libraries is part of the program and a test reads it")
});

/// All libraries; the CPU's runtime is the first.
#[must_use]
pub fn libraries() -> &'static [Library] {
    &LIBRARIES.libraries
}

/// The providers that `auto` tries, in this order.
pub fn auto() -> impl Iterator<Item = &'static str> {
    LIBRARIES.auto.iter().map(String::as_str)
}

/// The names of all providers that have a library.
pub fn provider_names() -> impl Iterator<Item = &'static str> {
    libraries().iter().flat_map(|library| &library.providers).map(|one| one.name.as_str())
}

/// What a provider is called here, by its name or alias, also where no package has a library of it.
#[must_use]
pub fn canonical(name: &str) -> Option<&'static str> {
    let mut named =
        with_aliases().filter(|(known, others)| *known == name || others.iter().any(|a| a == name));
    named.next().map(|(known, _)| known)
}

/// The names of all providers, also of those that no package has a library of.
pub fn names() -> impl Iterator<Item = &'static str> {
    with_aliases().map(|(name, _)| name)
}

fn with_aliases() -> impl Iterator<Item = (&'static str, &'static [String])> {
    let here = libraries().iter().flat_map(|library| &library.providers);
    let here = here.map(|one| (one.name.as_str(), one.aliases.as_slice()));
    let elsewhere = LIBRARIES.elsewhere.iter();
    here.chain(elsewhere.map(|one| (one.name.as_str(), one.aliases.as_slice())))
}

/// The provider of that name or alias, and the library that it computes with.
///
/// # Errors
/// [`Error::NoLibrary`] with the exact reason when no package has one, [`Error::UnknownProvider`].
pub fn provider(name: &str) -> Result<(&'static Library, &'static Provider), Error> {
    let named = canonical(name).unwrap_or(name);
    for library in libraries() {
        if let Some(provider) = library.providers.iter().find(|one| one.name == named) {
            return Ok((library, provider));
        }
    }
    Err(match LIBRARIES.elsewhere.iter().find(|one| one.name == named) {
        Some(Elsewhere { system, .. }) => {
            Error::NoLibrary(format!("{named} needs {system}; this is {}", machine()))
        }
        None => Error::UnknownProvider {
            name: name.to_owned(),
            known: provider_names().collect::<Vec<_>>().join(", "),
        },
    })
}

impl Library {
    /// The folder that it has in the store.
    #[must_use]
    pub fn folder_name(&self) -> String {
        format!("{}-{}", self.package, self.version)
    }

    /// The names of its providers, for people.
    #[must_use]
    pub fn provider_names(&self) -> String {
        self.providers.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Its files for this machine.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] names the processors that it is built for.
    pub fn build(&self) -> Result<&Build, Error> {
        let here = std::env::consts::ARCH;
        self.builds.iter().find(|build| build.arch == here).ok_or_else(|| {
            let known: Vec<_> = self.builds.iter().map(|b| format!("linux-{}", b.arch)).collect();
            Error::NoLibrary(format!(
                "{} needs {}, and this is {}; a library of your own can be named with OP_DBUS_RUNTIME",
                self.provider_names(),
                known.join(" or "),
                machine()
            ))
        })
    }
}

impl Build {
    /// Bytes of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn machine() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}
