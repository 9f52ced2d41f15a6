//! D-Bus values as JSON, for programs that hand them on.

use std::collections::HashMap;

use zbus::{OwnedVariant, Variant};

/// A D-Bus value as JSON, dictionaries as objects.
pub fn json(value: &Variant<'_>) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Variant::U8(n) => (*n).into(),
        Variant::Bool(b) => (*b).into(),
        Variant::I16(n) => (*n).into(),
        Variant::U16(n) => (*n).into(),
        Variant::I32(n) => (*n).into(),
        Variant::U32(n) => (*n).into(),
        Variant::I64(n) => (*n).into(),
        Variant::U64(n) => (*n).into(),
        Variant::F64(n) => (*n).into(),
        Variant::Str(s) => s.as_str().into(),
        Variant::Signature(s) => s.to_string().into(),
        Variant::ObjectPath(p) => p.as_str().into(),
        Variant::Variant(inner) => json(inner),
        Variant::Array(array) => array.inner().iter().map(json).collect(),
        Variant::Structure(structure) => structure.fields().iter().map(json).collect(),
        Variant::Dict(dict) => Value::Object(
            dict.iter()
                .map(|(key, value)| match json(key) {
                    Value::String(key) => (key, json(value)),
                    key => (key.to_string(), json(value)),
                })
                .collect(),
        ),
        Variant::Fd(_) => Value::Null,
    }
}

/// A dictionary of D-Bus values as a JSON object, keys in order.
pub fn json_object(dict: &HashMap<String, OwnedVariant>) -> serde_json::Value {
    dict.iter().map(|(key, value)| (key.clone(), json(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_values_become_json() {
        let worker = HashMap::from([("pid", Variant::from(7_u32)), ("name", Variant::from("w"))]);
        let value = Variant::from(vec![worker]);
        assert_eq!(json(&value), serde_json::json!([{ "pid": 7, "name": "w" }]));
    }
}
