//! The names, signatures and properties of the interface, as different clients see them.

use std::fs;

use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, EmbedderProxyBlocking, Error, ErrorName, JOB_INTERFACE,
    JobProxyBlocking, MANAGER_INTERFACE, ManagerProxyBlocking, ROOT_PATH, direct_blocking,
};
use serde_json::Value;
use zbus::Variant;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Options, refused};
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::golden::floats;
use crate::harness::introspection::{described, interfaces};
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, needs, repository};

tests! {
    introspection_equals_the_interface_files: [Bus],
    busctl_can_use_every_member: [Bus, Busctl],
    gdbus_can_use_every_member: [Bus, Gdbus],
    python_can_use_every_member: [Bus, Python],
    options_are_honoured: [Bus],
    every_reading_method_says_what_it_must: [Bus],
    blocking_proxies_say_the_same: [Bus],
    what_is_not_in_the_contract_is_refused: [Bus],
}

/// Properties of the embedder with the signature of each.
const PROPERTIES: [(&str, &str); 14] = [
    ("VectorLevel", "s"),
    ("Model", "s"),
    ("VectorSpace", "s"),
    ("Dimensions", "u"),
    ("MaxInputTokens", "u"),
    ("ExecutionProvider", "s"),
    ("RequestedExecutionProvider", "s"),
    ("FallbackReason", "s"),
    ("Precision", "s"),
    ("State", "s"),
    ("InlineReplyBytesMax", "u"),
    ("TextsPerCallMax", "u"),
    ("TextBytesMax", "u"),
    ("Version", "s"),
];

/// Methods without arguments, with the signature of the reply.
const MANAGER_METHODS: [(&str, &str); 11] = [
    ("Reload", ""),
    ("Unload", ""),
    ("WarmUp", ""),
    ("TrimMemory", "t"),
    ("ListLevels", "aa{sv}"),
    ("ListModels", "aa{sv}"),
    ("ListProviders", "aa{sv}"),
    ("ListDevices", "aa{sv}"),
    ("GetStatus", "a{sv}"),
    ("GetStatistics", "a{sv}"),
    ("GetSettings", "aa{sv}"),
];

async fn introspection_equals_the_interface_files() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let connection = daemon.client().connection();
    let live = described(connection, ROOT_PATH).await?;
    let (source, _writer) = std::io::pipe()?;
    let source = zbus::Fd::from(std::os::fd::AsFd::as_fd(&source));
    let job = daemon.client().embedder.start_embed_from_fd(source, Options::new()).await?;
    let job = described(connection, job.as_str()).await?;
    for interface in [EMBEDDER_INTERFACE, MANAGER_INTERFACE, JOB_INTERFACE] {
        let live = if interface == JOB_INTERFACE { &job } else { &live };
        let live = interfaces(live)?.remove(interface).ok_or("no such interface")?;
        let file = repository().join(format!("dbus-policy/interfaces/{interface}.xml"));
        let committed = interfaces(&fs::read_to_string(&file)?)?.remove(interface);
        let committed = committed.ok_or("no such interface in its file")?;
        let missing: Vec<_> = committed.difference(&live).collect();
        let extra: Vec<_> = live.difference(&committed).collect();
        assert!(missing.is_empty() && extra.is_empty(), "missing {missing:#?}, extra {extra:#?}");
        assert!(!live.is_empty(), "{interface} is empty");
    }
    daemon.stop().await
}

/// Runs `busctl` and returns the data of its reply, whose signature must be `signature`.
async fn busctl(bus: &PrivateBus, arguments: &[&str], signature: &str) -> Outcome<Value> {
    let mut command = clean("busctl");
    command.arg(format!("--address={}", bus.address())).arg("--json=short").args(arguments);
    let out = finish(command, "").await?.success()?;
    if signature.is_empty() {
        assert_eq!(out.trim(), "", "{arguments:?}");
        return Ok(Value::Null);
    }
    let reply: Value = serde_json::from_str(&out)?;
    assert_eq!(reply["type"].as_str(), Some(signature), "{arguments:?}: {out}");
    Ok(reply["data"].clone())
}

/// A call of the embedder: the words after the interface's name, and the reply's signature.
const EMBEDDER_CALLS: [(&[&str], &str); 10] = [
    (&["Embed", "s", "one"], "ad"),
    (&["EmbedBatch", "as", "2", "one", "two"], "aad"),
    (&["EmbedPacked", "asa{sv}", "2", "one", "two", "1", "truncate", "s", "end"], "ayuua{sv}"),
    (&["Similarity", "ss", "one", "one"], "d"),
    (&["Rank", "sasu", "two", "3", "one", "two", "three", "1"], "a(ud)"),
    (&["CountTokens", "as", "2", "one", "three"], "au"),
    (&["EmbedToFd", "asa{sv}", "1", "one", "1", "encoding", "s", "b1"], "huua{sv}"),
    // The ids of "one" in the simulator's vocabulary are its bytes.
    (&["EmbedTokens", "aaua{sv}", "1", "3", "111", "110", "101", "0"], "ayuua{sv}"),
    (&["Tokenize", "asa{sv}", "1", "one", "1", "level", "s", "low"], "aa(usbuu)"),
    (&["OpenDirect"], "h"),
];

async fn busctl_can_use_every_member() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let mut replies = Vec::new();
    for (words, signature) in EMBEDDER_CALLS {
        let target = ["call", BUS_NAME, ROOT_PATH, EMBEDDER_INTERFACE];
        replies.push(busctl(&bus, &[&target, words].concat(), signature).await?);
    }
    let vector = daemon.client().vectors(&["one"]).await?.pop();
    assert_eq!(floats(&replies[0][0]), vector);
    assert_eq!(floats(&replies[1][0][0]), vector);
    assert_eq!(replies[2][1], 2);
    assert!((replies[3][0].as_f64().ok_or("no number")? - 1.0).abs() < 1e-6);
    assert_eq!(replies[4][0][0][0], 1);
    assert_eq!(replies[5][0].as_array().map(Vec::len), Some(2));
    let bytes: Vec<u8> = vector.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!((&replies[6][1], &replies[6][2]), (&1.into(), &384.into()));
    assert_eq!(replies[7][0], serde_json::json!(bytes));
    assert_eq!(replies[8][0][0][1], serde_json::json!([111, "o", false, 0, 1]));

    for (method, signature) in MANAGER_METHODS {
        let words = ["call", BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, method];
        busctl(&bus, &words, signature).await?;
    }
    let words = ["call", BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "SetVectorLevel", "s", "high"];
    busctl(&bus, &words, "").await?;
    for (property, signature) in PROPERTIES {
        let words = ["get-property", BUS_NAME, ROOT_PATH, EMBEDDER_INTERFACE, property];
        let value = busctl(&bus, &words, signature).await?;
        if property == "VectorLevel" {
            assert_eq!(value, "high");
        }
    }
    daemon.stop().await
}

async fn gdbus(bus: &PrivateBus, method: &str, arguments: &[&str]) -> Outcome<String> {
    let mut command = clean("gdbus");
    command.args(["call", "--system", "--dest", BUS_NAME, "--object-path", ROOT_PATH]);
    command.args(["--method", method]).args(arguments);
    command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
    finish(command, "").await?.success()
}

async fn gdbus_can_use_every_member() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let embedder = async |method: &str, arguments: &[&str]| {
        gdbus(&bus, &format!("{EMBEDDER_INTERFACE}.{method}"), arguments).await
    };
    let vector = embedder("Embed", &["one"]).await?;
    assert!(vector.starts_with("([") && vector.matches(',').count() >= 383, "{vector}");
    embedder("EmbedBatch", &["['one', 'two']"]).await?;
    let packed = embedder("EmbedPacked", &["['one']", "{'priority': <'bulk'>}"]).await?;
    assert!(packed.contains("'space'") && packed.contains("uint32 384"), "{packed}");
    let to_fd = embedder("EmbedToFd", &["['one']", "{'format': <'npy'>}"]).await?;
    assert!(to_fd.starts_with("(handle 0, ") && to_fd.contains("uint32 384"), "{to_fd}");
    assert!(embedder("Similarity", &["one", "one"]).await?.contains("1.0"));
    assert!(embedder("Rank", &["two", "['one', 'two']", "1"]).await?.starts_with("([(uint32 1,"));
    assert!(embedder("CountTokens", &["['one', 'two']"]).await?.starts_with("([uint32 "));
    let tokens = embedder("EmbedTokens", &["[[111, 110, 101]]", "{}"]).await?;
    assert!(tokens.contains("uint32 384"), "{tokens}");
    assert!(embedder("OpenDirect", &[]).await?.starts_with("(handle 0,"));
    let tokens = embedder("Tokenize", &["['one']", "{}"]).await?;
    assert!(tokens.contains("(111, 'o', false, 0, 1)"), "{tokens}");
    for (method, _) in MANAGER_METHODS {
        gdbus(&bus, &format!("{MANAGER_INTERFACE}.{method}"), &[]).await?;
    }
    gdbus(&bus, &format!("{MANAGER_INTERFACE}.SetVectorLevel"), &["none"]).await?;
    let get_all = "org.freedesktop.DBus.Properties.GetAll";
    let properties = gdbus(&bus, get_all, &[EMBEDDER_INTERFACE]).await?;
    for (property, _) in PROPERTIES {
        assert!(properties.contains(&format!("'{property}': <")), "{property}: {properties}");
    }
    daemon.stop().await
}

async fn python_can_use_every_member() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let vector = daemon.client().vectors(&["one"]).await?.pop();
    let mut command = clean("python3");
    command.arg(fixture("python/client.py")).arg(bus.address());
    command.env("PYTHONPATH", needs::python_path()).env("PYTHONDONTWRITEBYTECODE", "1");
    let said: Value = serde_json::from_str(&finish(command, "").await?.success()?)?;
    assert_eq!(floats(&said["embed"]), vector);
    assert_eq!(floats(&said["packed"][1]), vector);
    assert_eq!(floats(&said["to an fd"]), vector);
    assert_eq!(floats(&said["from an fd"]), vector);
    assert_eq!(said["rank"][0][0], 1);
    assert_eq!(said["level after the change"], "none");
    assert_eq!(said["changed by the signal"], serde_json::json!(["none", "disabled"]));
    assert_eq!(said["error"], "org.opdbus.Embedding1.Error.Disabled");
    for (property, _) in PROPERTIES {
        assert!(!said["properties"][property].is_null(), "{property}");
    }
    for (method, signature) in MANAGER_METHODS {
        assert_eq!(said["signatures"][method], signature, "{method}");
    }
    daemon.stop().await
}

async fn options_are_honoured() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let texts = ["one", "two"];
    let options = Options::from([
        ("level", Variant::from("low")),
        ("normalize", true.into()),
        ("truncate", "start".into()),
        ("encoding", "f32".into()),
        ("priority", "interactive".into()),
        ("deadline_ms", 600_000_u32.into()),
    ]);
    let reply = client.packed(&texts, options).await?;
    assert_eq!(reply.vectors, client.vectors(&texts).await?);
    assert_eq!(reply.info::<String>("space")?, client.embedder.vector_space().await?);
    assert_eq!(reply.info::<String>("level")?, "low");
    assert_eq!(reply.info::<String>("model")?, client.embedder.model().await?);
    assert_eq!(reply.info::<u32>("dimensions")?, client.embedder.dimensions().await?);
    assert_eq!(reply.info::<String>("provider")?, client.embedder.execution_provider().await?);
    assert_eq!(reply.info::<String>("precision")?, client.embedder.precision().await?);
    assert!(!reply.info::<String>("device")?.is_empty());
    let counts = client.embedder.count_tokens(&texts).await?;
    assert_eq!(reply.info::<u64>("tokens")?, counts.iter().map(|n| u64::from(*n)).sum::<u64>());
    assert_eq!(reply.info::<Vec<u32>>("truncated")?, [0_u32; 0]);
    assert_eq!(reply.info::<u32>("cached")?, 0);
    reply.info::<u64>("queue_us")?;
    reply.info::<u64>("compute_us")?;
    assert_eq!(reply.info.len(), 12, "{:?}", reply.info.keys());
    // No texts, no vectors, and no error.
    assert!(client.packed::<&str>(&[], Options::new()).await?.vectors.is_empty());
    daemon.stop().await
}

async fn every_reading_method_says_what_it_must() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let manager = &daemon.client().manager;
    let text = |dictionary: &std::collections::HashMap<String, zbus::OwnedVariant>, key: &str| {
        dictionary.get(key).and_then(|value| String::try_from(value.clone()).ok())
    };
    let levels = manager.list_levels().await?;
    let names: Vec<_> = levels.iter().filter_map(|level| text(level, "name")).collect();
    assert_eq!(names, ["none", "low", "medium", "high"]);
    assert!(manager.list_models().await?.is_empty());
    let providers = manager.list_providers().await?;
    let cpu = providers.iter().find(|p| text(p, "name").as_deref() == Some("cpu"));
    let cpu = cpu.ok_or("no provider cpu")?;
    for key in ["name", "aliases", "available", "reason", "devices"] {
        assert!(cpu.contains_key(key), "{key}");
    }
    let cuda = providers.iter().find(|p| text(p, "name").as_deref() == Some("cuda"));
    let cuda = cuda.ok_or("no provider cuda")?;
    assert_eq!(bool::try_from(&cuda["available"]), Ok(false));
    assert_eq!(Vec::<String>::try_from(cuda["aliases"].clone())?, ["gpu"]);
    let settings = manager.get_settings().await?;
    let level = settings.iter().find(|s| text(s, "key").as_deref() == Some("vector_level"));
    let level = level.ok_or("no setting vector_level")?;
    assert_eq!(text(level, "value").as_deref(), Some("low"));
    let origin = text(level, "origin").unwrap_or_default();
    assert!(origin.contains(&setup.config_file().display().to_string()), "{origin}");
    let status = manager.get_status().await?;
    assert_eq!(text(&status, "state").as_deref(), Some("ready"));
    assert_eq!(text(&status, "engine").as_deref(), Some("sim"));
    assert_eq!(text(&status, "isa").as_deref(), Some(""));
    assert_eq!(u32::try_from(&status["pid"]), Ok(daemon.process.pid().as_raw().cast_unsigned()));
    for counter in ["calls", "texts", "tokens", "batches", "truncated", "worker_restarts"] {
        daemon.client().counter(counter).await?;
    }
    daemon.stop().await
}

/// In threads that have no event loop, which share a proxy.
async fn blocking_proxies_say_the_same() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let expected = daemon.client().embedder.embed("one").await?;
    let address = bus.address().to_owned();
    let blocking = move || -> zbus::Result<()> {
        let connect = zbus::connection::Builder::address(address.as_str()).build();
        let connection = zbus::block_on(connect)?;
        let embedder = EmbedderProxyBlocking::new(&connection)?;
        let manager = ManagerProxyBlocking::new(&connection)?;
        let line = EmbedderProxyBlocking::new(&direct_blocking(&embedder)?)?;
        std::thread::scope(|scope| {
            for proxy in [&embedder, &embedder, &line, &line] {
                scope.spawn(|| assert_eq!(proxy.embed("one").ok().as_ref(), Some(&expected)));
            }
        });
        assert_eq!(embedder.state()?, "ready");
        assert_eq!(manager.list_levels()?.len(), 4);
        // Properties are what they are now, though nobody has read the signal.
        manager.set_vector_level("none")?;
        assert_eq!([embedder.state()?, line.state()?], ["disabled", "disabled"]);
        let refusal = refused(line.embed("one"), ErrorName::Disabled);
        assert!(refusal.is_ok(), "{refusal:?}");
        let gone = JobProxyBlocking::new(&connection, "/org/opdbus/Embedding1/jobs/none")?;
        let refusal = gone.fetch().err().as_ref().and_then(Error::from_reply);
        assert_eq!(refusal.map(|refusal| refusal.name()), Some(ErrorName::UnknownObject));
        assert!(JobProxyBlocking::new(&connection, "no path").is_err());
        zbus::block_on(connection.close())
    };
    tokio::task::spawn_blocking(blocking).await??;
    daemon.stop().await
}

async fn what_is_not_in_the_contract_is_refused() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let connection = daemon.client().connection();
    let refusal = async |interface: &str, method: &str, path: &str| -> Outcome<String> {
        let body = vec!["one"];
        let call = connection.call_method(Some(BUS_NAME), path, Some(interface), method, &body);
        match call.await {
            Err(zbus::Error::MethodError(name, ..)) => Ok(name.to_string()),
            Err(zbus::Error::FDO(error)) => Ok(zbus::DBusError::name(&*error).to_string()),
            other => Err(format!("{interface}.{method} at {path}: {other:?}").into()),
        }
    };
    let error = |name: &str| format!("org.freedesktop.DBus.Error.{name}");
    assert_eq!(refusal(EMBEDDER_INTERFACE, "Embde", ROOT_PATH).await?, error("UnknownMethod"));
    // `Embed` takes one text.
    assert_eq!(refusal(EMBEDDER_INTERFACE, "Embed", ROOT_PATH).await?, error("InvalidArgs"));
    assert_eq!(refusal(EMBEDDER_INTERFACE, "Embed", "/nowhere").await?, error("UnknownObject"));
    // The policy file names what may be called; setting properties is not among it.
    let properties = "org.freedesktop.DBus.Properties";
    assert_eq!(refusal(properties, "Set", ROOT_PATH).await?, error("AccessDenied"));
    daemon.client().embedder.embed("one").await?;
    daemon.stop().await
}
