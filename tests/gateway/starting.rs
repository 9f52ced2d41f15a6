//! Where the gateway listens, and where it refuses to.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;

use serde_json::json;
use tokio::net::UnixStream;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::gateway::{Gateway, command};
use crate::harness::manager::ServiceManager;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};

tests! {
    a_unix_socket_is_listened_on: [Bus, Curl],
    systemds_socket_is_used: [Bus, Curl, SystemdAnalyze],
    a_handed_socket_that_others_reach_wants_a_key: [Bus],
    a_handed_connection_is_refused: [Bus],
    the_service_manager_hears_of_the_gateway: [Bus],
    it_does_not_start_where_it_should_not: [Bus],
}

async fn a_unix_socket_is_listened_on() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let listen = format!("unix:{}", setup.path("http.sock").display());
    let gateway = Gateway::start_command(command(&bus, &setup, &listen)?).await?;
    assert_eq!(gateway.url(""), listen);
    gateway.post("/v1/embeddings", &json!({"input": "one"})).await?.ok()?;
    // No browser comes by this way.
    let named = gateway.curl("/health", &["-H", "Host: behind.a.proxy"], "").await?;
    assert_eq!(named.status, 200);
    // Somebody listens there.
    let second = finish(command(&bus, &setup, &listen)?, "").await?;
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    gateway.stop().await?;
    // Nobody does any more, and the file is still there.
    let mut again = command(&bus, &setup, &listen)?;
    again.env("OPDBUS_HTTP_LISTEN", "127.0.0.1:0");
    let log = Gateway::start_command(again).await?.stop().await?;
    assert!(log.contains("did you mean `OP_DBUS_HTTP_LISTEN`"), "{log}");
    daemon.stop().await
}

async fn systemds_socket_is_used() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let socket = setup.path("handed.sock");
    let own = command(&bus, &setup, "")?;
    let mut activate = clean("systemd-socket-activate");
    activate.arg("--listen").arg(&socket);
    activate.arg(own.as_std().get_program()).args(own.as_std().get_args());
    // It starts the gateway when somebody connects.
    let first = async || Outcome::Ok(UnixStream::connect(&socket).await.is_ok());
    let first = eventually("systemd's socket", first);
    let (gateway, ()) = tokio::try_join!(Gateway::start_command(activate), first)?;
    assert_eq!(gateway.url(""), format!("unix:{}", socket.display()));
    gateway.post("/embed", &json!({"inputs": "one"})).await?.ok()?;
    gateway.stop().await?;
    daemon.stop().await
}

/// What a gateway says that refuses what systemd hands over.
async fn refused(socket: OwnedFd) -> Outcome<String> {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let own = command(&bus, &setup, "")?;
    let mut handed = clean("sh");
    handed.args(["-c", "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&0", "sh"]);
    handed.arg(own.as_std().get_program()).args(own.as_std().get_args());
    handed.stdin(socket).stdout(Stdio::null());
    let ended = within("the refusal", handed.output()).await??;
    assert_eq!(ended.status.code(), Some(6));
    Ok(String::from_utf8(ended.stderr)?)
}

async fn a_handed_socket_that_others_reach_wants_a_key() -> Outcome {
    let said = refused(TcpListener::bind("0.0.0.0:0")?.into()).await?;
    // No setting names that address.
    assert!(said.starts_with("op-dbus: systemd's socket is 0.0.0.0:"), "{said}");
    assert!(said.contains("there is no API key"), "{said}");
    Ok(())
}

/// As where a unit has `Accept=yes`.
async fn a_handed_connection_is_refused() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (unix, _far) = StdUnixStream::pair()?;
    for connection in [OwnedFd::from(client), OwnedFd::from(unix)] {
        let said = refused(connection).await?;
        assert!(said.starts_with("op-dbus: systemd hands over a connection"), "{said}");
        assert!(said.contains("Accept=no"), "{said}");
    }
    Ok(())
}

async fn the_service_manager_hears_of_the_gateway() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let path = setup.path("notify");
    let manager = ServiceManager::listen(&path)?;
    let mut command = command(&bus, &setup, "127.0.0.1:0")?;
    command.env("NOTIFY_SOCKET", &path);
    let gateway = Gateway::start_command(command).await?;
    manager.told("READY=1").await?;
    gateway.stop().await?;
    manager.told("STOPPING=1").await?;
    Ok(())
}

async fn it_does_not_start_where_it_should_not() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    for (listen, code, word) in [
        ("", 6, "default: http_listen is none"),
        ("0.0.0.0:0", 6, "there is no API key"),
        ("0.0.0.0:0", 6, "flag --http-listen: http_listen is 0.0.0.0:"),
        ("[::]:0", 6, "there is no API key"),
        ("localhost:80", 2, "not an IP address with a port"),
        ("unix:http.sock", 2, "its path is not absolute"),
        ("unix:/no/such/folder/http.sock", 1, "flag --http-listen: http_listen is unix:/no/such"),
        ("unix:/no/such/folder/http.sock", 1, "can't be listened on"),
    ] {
        let ended = finish(command(&bus, &setup, listen)?, "").await?;
        assert_eq!(ended.code, Some(code), "{listen}: {}", ended.stderr);
        assert!(ended.stderr.contains(word), "{listen}: {}", ended.stderr);
    }
    let mut variable = command(&bus, &setup, "")?;
    variable.env("OP_DBUS_HTTP_LISTEN", "0.0.0.0:0");
    let ended = finish(variable, "").await?;
    let says = "op-dbus: environment variable OP_DBUS_HTTP_LISTEN: http_listen is 0.0.0.0:";
    assert!(ended.stderr.starts_with(says), "{}", ended.stderr);
    let written = Setup::sim()?.setting("http_listen", "0.0.0.0:0");
    let ended = finish(command(&bus, &written, "")?, "").await?;
    let file = format!("op-dbus: {}, line ", written.config_file().display());
    assert!(ended.stderr.starts_with(&file), "{}", ended.stderr);
    for key in ["", "two words", "\u{e9}"] {
        fs::write(setup.path("api-key"), key)?;
        let mut command = command(&bus, &setup, "0.0.0.0:0")?;
        command.env("CREDENTIALS_DIRECTORY", setup.path(""));
        let ended = finish(command, "").await?;
        assert_eq!(ended.code, Some(6), "{key:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("api-key"), "{}", ended.stderr);
    }
    fs::write(setup.path("api-key"), "secret")?;
    let mut open = command(&bus, &setup, "0.0.0.0:0")?;
    open.env("CREDENTIALS_DIRECTORY", setup.path(""));
    Gateway::start_command(open).await?.stop().await.map(drop)
}
