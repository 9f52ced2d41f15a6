//! The types a setting's value can have once it has been checked.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};
use zbus::Address;

use super::kind::{Choice, show};

/// Makes a type of the names that a setting accepts: its values with `ALL`, `CHOICES`, `Display`, `FromStr` and
/// `Deserialize`.
macro_rules! named {
    (
        $(#[$about:meta])*
        $type:ident, $what:literal:
        $($(#[$doc:meta])* $value:ident = $name:literal $(or $alias:literal)?,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$doc])* $value,)*
        }

        impl $type {
            /// Each with its canonical name.
            pub const ALL: &[($type, &str)] = &[$(($type::$value, $name),)*];
            /// Their names, and what else people call them.
            pub(super) const CHOICES: &[Choice] =
                &[$(Choice { name: $name, aliases: &[$($alias)?] },)*];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = $type::ALL.iter().find(|(value, _)| value == self);
                f.pad(name.map_or("", |(_, name)| name))
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = $type::ALL.iter().find(|(_, name)| *name == text);
                found
                    .map(|(value, _)| *value)
                    .ok_or_else(|| format!("`{text}` is not the name of {}", $what))
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text(deserializer)
            }
        }
    };
}

named! {
    /// What computes the vectors, as asked for; what really runs is known only at run time.
    Provider, "an execution provider":
    /// The best provider that works on this machine.
    Auto = "auto",
    /// The processor.
    Cpu = "cpu",
    /// NVIDIA, through CUDA.
    Cuda = "cuda" or "gpu",
    /// NVIDIA, through TensorRT.
    TensorRt = "tensorrt" or "trt",
    /// Any GPU with a Vulkan, Metal or Direct3D 12 driver.
    WebGpu = "webgpu" or "wgpu",
    /// Whatever the ggml library computes on.
    Ggml = "ggml",
    /// Intel processors, GPUs and NPUs.
    OpenVino = "openvino",
    /// AMD, through MIGraphX.
    MiGraphX = "migraphx" or "rocm",
    /// Windows, through Direct3D 12.
    DirectMl = "directml" or "dml",
    /// Apple hardware.
    CoreMl = "coreml",
    /// Another machine.
    Remote = "remote",
}

named! {
    /// The number format that a model computes in.
    Precision, "a precision":
    /// What the provider does best without a visible loss of quality.
    Auto = "auto",
    /// 32-bit floating point.
    F32 = "f32",
    /// 16-bit floating point.
    F16 = "f16",
    /// 16-bit floating point with the range of 32.
    Bf16 = "bf16",
    /// 8-bit integers.
    Int8 = "int8",
}

named! {
    /// What computes on the CPU.
    CpuEngine, "a CPU engine":
    /// Our own kernels.
    Native = "native",
    /// ONNX Runtime.
    Ort = "ort",
    /// Simulated vectors: the same text gives the same vector, but they carry no meaning.
    Sim = "sim",
}

named! {
    /// Whether the CPU computes beside an accelerator.
    Offload, "a way to offload":
    /// It does not.
    Off = "off",
    /// It takes the batches that it will have done first.
    Auto = "auto",
}

/// Which devices of the provider are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Every device that the provider finds.
    All,
    /// These, by number, in this order, each once.
    List(Vec<u32>),
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Devices::All => f.write_str("all"),
            Devices::List(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Devices::All);
        }
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let digits = part.trim();
            let number = match digits.parse::<u32>() {
                Ok(number) if digits.bytes().all(|b| b.is_ascii_digit()) => number,
                _ => return Err(format!("{} is not a device number", show(&digits.into()))),
            };
            if numbers.contains(&number) {
                return Err(format!("device {number} is named twice"));
            }
            numbers.push(number);
        }
        Ok(Devices::List(numbers))
    }
}

/// Where the service is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bus {
    /// The system bus.
    System,
    /// The session bus of the user who starts the daemon.
    Session,
    /// A bus by its D-Bus address, for example `unix:path=/run/user/1000/bus`.
    Address(String),
}

impl Bus {
    /// The way to it.
    pub fn builder(&self) -> zbus::connection::Builder<'static> {
        match self {
            Bus::System => zbus::connection::Builder::system(),
            Bus::Session => zbus::connection::Builder::session(),
            Bus::Address(address) => zbus::connection::Builder::address(address.as_str()),
        }
    }

    /// Its D-Bus address, where it is one.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        match self {
            Bus::System => Address::system().ok(),
            Bus::Session => Address::session().ok(),
            Bus::Address(address) => address.as_str().try_into().ok(),
        }
    }

    /// What to look at where it can't be reached.
    #[must_use]
    pub fn remedy(&self) -> String {
        let (variable, unset) = match self {
            Bus::System => (
                "DBUS_SYSTEM_BUS_ADDRESS",
                "is a system bus running? `--bus` or OP_DBUS_BUS names another",
            ),
            Bus::Session => (
                "DBUS_SESSION_BUS_ADDRESS",
                "is there a session, and DBUS_SESSION_BUS_ADDRESS set?",
            ),
            Bus::Address(_) => return "is the address right, and that bus running?".to_owned(),
        };
        std::env::var_os(variable).map_or(unset.to_owned(), |address| {
            if address.is_empty() {
                return format!(
                    "{variable} is set and empty; unset it, or set it to the address of that bus"
                );
            }
            let told = address.display();
            if is_list(&told.to_string()) {
                return format!(
                    "{variable}, which is {told}, is a list of addresses, of which none is tried; name one of them \
                     there or with `--bus`"
                );
            }
            format!("is {variable}, which is {told}, right, and that bus running?")
        })
    }
}

impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bus::System => f.write_str("system"),
            Bus::Session => f.write_str("session"),
            Bus::Address(address) => f.write_str(address),
        }
    }
}

impl FromStr for Bus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "system" => Ok(Bus::System),
            "session" => Ok(Bus::Session),
            // It would be taken for the address of a socket with that in its name.
            _ if is_list(text) => {
                let message = "it is a list of D-Bus addresses, of which only one may be named; \
                               a `;` within an address is written `%3b`";
                Err(message.to_owned())
            }
            _ => match text.parse::<Address>() {
                Ok(_) => Ok(Bus::Address(text.to_owned())),
                Err(error) => Err(format!(
                    "it is not a D-Bus address ({error}); write `system`, `session`, or a D-Bus \
                     address"
                )),
            },
        }
    }
}

/// Whether these are several D-Bus addresses, between which there is a sign that no single one has.
fn is_list(addresses: &str) -> bool {
    addresses.contains(';')
}

/// Reads a value by its `FromStr`.
pub(super) fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// Reads a number that may instead be a word for "not set" (`auto`, `any`), as `None`.
pub(super) fn number_or_word<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    let value = <figment::value::Value as Deserialize>::deserialize(d)?;
    Ok(value.deserialize().ok())
}

/// Reads a text whose empty form means "not set".
pub(super) fn text_or_empty<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: From<String>,
{
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then(|| T::from(text)))
}
