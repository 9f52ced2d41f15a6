//! Introspection data as sets of lines: two documents can be compared whatever their layout.

use std::collections::{BTreeMap, BTreeSet};

use op_dbus_api::BUS_NAME;
use quick_xml::Reader;
use quick_xml::events::Event;
use zbus::Connection;
use zbus::fdo::IntrospectableProxy;

use super::Outcome;

/// The introspection data of an object.
pub async fn described(connection: &Connection, path: &str) -> Outcome<String> {
    let introspectable = IntrospectableProxy::builder(connection).destination(BUS_NAME);
    let introspectable = introspectable.path(path.to_owned()).build().await?;
    Ok(introspectable.introspect().await?)
}

/// The interfaces of an object by their names, each with everything that callers can rely on: members,
/// arguments in order with name and type, and annotations. Documentation is left out.
pub fn interfaces(xml: &str) -> Outcome<BTreeMap<String, BTreeSet<String>>> {
    let mut found = BTreeMap::new();
    let (mut interface, mut member, mut argument) = (String::new(), String::new(), 0);
    let mut reader = Reader::from_str(xml);
    loop {
        let (tag, is_empty) = match reader.read_event()? {
            Event::Start(tag) => (tag, false),
            Event::Empty(tag) => (tag, true),
            Event::End(tag) => {
                if matches!(tag.name().as_ref(), "method" | "signal" | "property") {
                    member.clear();
                }
                continue;
            }
            Event::Eof => return Ok(found),
            _ => continue,
        };
        let own = |key| -> Outcome<String> {
            let attribute = tag.try_get_attribute(key)?;
            Ok(attribute.map(|attribute| attribute.value.into_owned()).unwrap_or_default())
        };
        let name = tag.name();
        let line = match name.as_ref() {
            "interface" => {
                interface = own("name")?;
                found.insert(interface.clone(), BTreeSet::new());
                continue;
            }
            "property" => format!("property {} {} {}", own("name")?, own("type")?, own("access")?),
            kind @ ("method" | "signal") => format!("{kind} {}", own("name")?),
            "arg" => {
                argument += 1;
                let direction = own("direction")?;
                format!("{member}arg {argument} {direction} {} {}", own("name")?, own("type")?)
            }
            "annotation" => format!("{member}annotation {} = {}", own("name")?, own("value")?),
            _ => continue,
        };
        if !is_empty && matches!(name.as_ref(), "method" | "signal" | "property") {
            (member, argument) = (format!("{line}: "), 0);
        }
        // The documentation and the default say nothing that binds.
        if !line.contains("DocString") && !line.ends_with("EmitsChangedSignal = true") {
            found.entry(interface.clone()).or_default().insert(line);
        }
    }
}
