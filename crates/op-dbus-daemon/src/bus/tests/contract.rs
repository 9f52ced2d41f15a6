//! The interface files are what the objects say of themselves.

use op_dbus_api::{EMBEDDER_INTERFACE, MANAGER_INTERFACE, ROOT_PATH};
use zbus::fdo::IntrospectableProxy;

use super::pair;

/// The lines of one interface, without comments, blank lines and indentation.
fn interface(xml: &str, name: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = xml;
    while let Some((before, comment)) = rest.split_once("<!--") {
        plain.push_str(before);
        rest = comment.split_once("-->").expect("a comment that ends").1;
    }
    plain.push_str(rest);
    let lines = plain.lines().map(str::trim).filter(|line| !line.is_empty());
    let start = format!("<interface name=\"{name}\">");
    let mut lines: Vec<String> =
        lines.skip_while(|line| *line != start).map(str::to_owned).collect();
    let end = lines.iter().position(|line| line == "</interface>").expect("the interface's end");
    lines.truncate(end + 1);
    lines
}

#[tokio::test]
async fn interface_files_equal_introspection() {
    let pair = pair(&[]).await;
    let proxy = IntrospectableProxy::builder(&pair.client)
        .destination("org.opdbus.Embedding1")
        .path(ROOT_PATH)
        .build()
        .await
        .unwrap();
    let live = proxy.introspect().await.unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dbus-policy/interfaces");
    for name in [EMBEDDER_INTERFACE, MANAGER_INTERFACE] {
        let file = std::fs::read_to_string(format!("{folder}/{name}.xml")).unwrap();
        assert_eq!(
            interface(&live, name),
            interface(&file, name),
            "live and file of {name}:\n{live}"
        );
    }
}

#[tokio::test]
async fn every_argument_has_a_name() {
    let pair = pair(&[]).await;
    let proxy = IntrospectableProxy::builder(&pair.client)
        .destination("org.opdbus.Embedding1")
        .path(ROOT_PATH)
        .build()
        .await
        .unwrap();
    let live = proxy.introspect().await.unwrap();
    for name in [EMBEDDER_INTERFACE, MANAGER_INTERFACE] {
        for line in interface(&live, name).iter().filter(|line| line.starts_with("<arg")) {
            assert!(line.contains(" name=\""), "{name}: {line}");
        }
    }
}
