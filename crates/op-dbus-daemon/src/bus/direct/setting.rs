//! Properties that a client would set on a direct connection, which has no policy that would forbid it.

use zbus::{Message, Variant};

/// The same call, but for the value of a property that is to be set: zbus would make sixty bytes of each byte of an
/// array, to say that the property can't be set.
///
/// # Errors
/// Never for a call that was parsed.
pub fn without_value(call: Message) -> zbus::Result<Message> {
    let header = call.header();
    let (Some(path), Some(interface), Some(member)) =
        (header.path(), header.interface(), header.member())
    else {
        return Ok(call);
    };
    if *interface != "org.freedesktop.DBus.Properties" || *member != "Set" {
        return Ok(call);
    }
    let body = call.body();
    let (of, name): (&str, &str) = body.deserialize_ignore_signature().unwrap_or_default();
    let small = Message::method_call(path, "Set").interface(interface);
    small.serial(header.primary().serial_num()).build(&(of, name, Variant::from(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_goes_and_all_else_stays() {
        let call = |method| Message::method_call("/a", method);
        let call = |method| call(method).interface("org.freedesktop.DBus.Properties");
        let large = Variant::from(vec![1_u8; 1000]);
        let set = call("Set").build(&("a.b", "C", large)).unwrap();
        let small = without_value(set.clone()).unwrap();
        assert_eq!(small.primary_header().serial_num(), set.primary_header().serial_num());
        assert_eq!(small.header().path(), set.header().path());
        let body = small.body();
        let (of, name, value): (&str, &str, Variant<'_>) = body.deserialize().unwrap();
        assert_eq!((of, name, value), ("a.b", "C", Variant::from(false)));
        let get = call("Get").build(&("a.b", "C")).unwrap();
        assert_eq!(without_value(get.clone()).unwrap().data().bytes(), get.data().bytes());
    }
}
