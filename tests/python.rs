//! The Python package: built as a wheel, installed, type-checked, and used against a daemon.

use std::fs;
use std::path::{Path, PathBuf};

use op_dbus_api::ErrorName;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::golden::floats;
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, needs, repository};

tests! {
    the_wheel_works_where_it_is_installed: [Bus, PythonPackages],
    the_wheel_sends_long_lists_in_parts: [Bus, PythonPackages],
    the_wheel_tells_of_a_full_bus: [Bus, PythonPackages],
    the_wheel_brings_its_types: [PythonPackages],
}

/// The wheel, built from the tree and installed into an environment of its own.
struct Installed {
    folder: TempDir,
}

impl Installed {
    /// Nothing is fetched: what builds the wheel and what it depends on is in the test's packages.
    async fn new() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("wheel-").tempdir()?;
        let installed = Self { folder };
        let python = needs::python_packages();
        let mut build = clean(&python);
        build.args(["-m", "hatchling", "build", "--target", "wheel", "--directory"]);
        build.arg(installed.folder.path()).current_dir(repository().join("packaging/python"));
        finish(build, "").await?.success()?;
        let mut venv = clean(&python);
        venv.args(["-m", "venv", "--without-pip"]).arg(installed.folder.path().join("venv"));
        finish(venv, "").await?.success()?;
        // What the package depends on lies behind what is installed here.
        let packages = site_of(&python).await?;
        let site = site_of(&installed.python()).await?;
        fs::write(site.join("dependencies.pth"), packages.display().to_string())?;
        let mut install = clean("python3");
        install.args(["-m", "pip", "--quiet", "--python"]).arg(installed.python());
        install.args(["install", "--no-index", "--no-deps"]).arg(installed.wheel()?);
        finish(install, "").await?.success()?;
        Ok(installed)
    }

    fn wheel(&self) -> Outcome<PathBuf> {
        let mut files = self.folder.path().read_dir()?.filter_map(Result::ok);
        let wheel = files.find(|file| file.path().extension().is_some_and(|end| end == "whl"));
        Ok(wheel.ok_or("no wheel was built")?.path())
    }

    fn python(&self) -> PathBuf {
        self.folder.path().join("venv/bin/python")
    }

    /// Runs Python with the installed package, far from the tree's own.
    async fn run(&self, words: &[&str], script: &Path, argument: &str) -> Outcome<String> {
        let mut command = clean(self.python());
        command.args(words).arg(script).args((!argument.is_empty()).then_some(argument));
        command.current_dir(self.folder.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        finish(command, "").await?.success()
    }
}

/// Where the packages of an environment lie.
async fn site_of(python: &Path) -> Outcome<PathBuf> {
    let mut ask = clean(python);
    ask.args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    Ok(PathBuf::from(finish(ask, "").await?.success()?.trim()))
}

async fn the_wheel_works_where_it_is_installed() -> Outcome {
    let installed = Installed::new().await?;
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let said = installed.run(&["-Werror"], &fixture("python/package.py"), bus.address()).await?;
    installed.run(&["-Werror"], &fixture("python/unanswered.py"), bus.address()).await?;
    installed.run(&["-Werror"], &fixture("python/at_exit.py"), bus.address()).await?;
    installed.run(&["-Werror"], &fixture("python/overlap.py"), "").await?;
    installed.run(&["-Werror"], &fixture("python/descriptors.py"), "").await?;
    let said: Value = serde_json::from_str(&said)?;
    let from = said["file"].as_str().unwrap_or_default();
    assert!(Path::new(from).starts_with(installed.folder.path()), "the package came from {from}");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(said["version"], version);
    let licence = format!("op_dbus-{version}.dist-info/licenses/LICENSE");
    let licence = fs::read(site_of(&installed.python()).await?.join(licence))?;
    assert!(licence == fs::read(repository().join("LICENSE"))?, "packaging/python has another");
    let mut names: Vec<&str> = ErrorName::ALL.iter().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(said["errors"], serde_json::to_value(names)?);
    let vector = daemon.client().vectors(&["one"]).await?.pop().ok_or("no vector")?;
    assert_eq!(floats(&said["vector"]), Some(vector));
    daemon.stop().await
}

/// Parts that leave room beside them, and fit a small quota.
async fn the_wheel_sends_long_lists_in_parts() -> Outcome {
    let installed = Installed::new().await?;
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    installed.run(&["-Werror"], &fixture("python/long_lists.py"), bus.address()).await?;
    daemon.stop().await?;
    let small = Setup::sim()?.setting("quota_tokens", "20000");
    let (bus, _setup, daemon) = small.alone().await?;
    installed.run(&["-Werror"], &fixture("python/small_quota.py"), bus.address()).await?;
    daemon.stop().await
}

/// A bus that answers Hello with a refusal.
async fn the_wheel_tells_of_a_full_bus() -> Outcome {
    let installed = Installed::new().await?;
    let policy = installed.folder.path().join("limit.conf");
    let limit = r#"<limit name="max_connections_per_user">3</limit>"#;
    fs::write(&policy, format!("<busconfig>{limit}</busconfig>"))?;
    let bus = PrivateBus::start_with(&[&policy], |command| command).await?;
    installed.run(&["-Werror"], &fixture("python/full_bus.py"), bus.address()).await.map(drop)
}

async fn the_wheel_brings_its_types() -> Outcome {
    let installed = Installed::new().await?;
    let mypy = ["-m", "mypy", "--strict", "--cache-dir=/dev/null"];
    let said = installed.run(&mypy, &fixture("python/typed.py"), "").await?;
    assert!(said.starts_with("Success"), "{said}");
    let package = site_of(&installed.python()).await?.join("op_dbus");
    installed.run(&mypy, &package, "").await.map(drop)
}
