//! A client of the service on a connection of its own.

use std::collections::HashMap;
use std::os::fd::AsFd;

use nix::unistd::Pid;
use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, EmbedderProxy, Error, ErrorName, JobProxy, ManagerProxy,
    ROOT_PATH,
};
use tokio::task::JoinHandle;
use zbus::message::Builder;
use zbus::proxy::CacheProperties;
use zbus::{Connection, Fd, Message, OwnedObjectPath, OwnedVariant, Variant};

use super::bus::PrivateBus;
use super::files::numbers;
use super::{Outcome, eventually};

/// Typed proxies without a cache: what a test reads is what the service says now.
pub struct Client {
    pub embedder: EmbedderProxy<'static>,
    pub manager: ManagerProxy<'static>,
    connection: Connection,
}

/// Options of the packed methods.
pub type Options<'a> = HashMap<&'a str, Variant<'a>>;

/// A reply of `EmbedPacked`, unpacked.
pub struct Packed {
    pub vectors: Vec<Vec<f32>>,
    pub info: HashMap<String, OwnedVariant>,
}

impl Packed {
    /// A value of the information dictionary.
    pub fn info<T>(&self, key: &str) -> Outcome<T>
    where
        T: TryFrom<OwnedVariant>,
        T::Error: std::error::Error + 'static,
    {
        value(&self.info, key)
    }
}

/// What the service tells of one thing, such as a worker.
pub type Told = HashMap<String, OwnedVariant>;

/// One value of what is told.
pub fn value<T>(told: &Told, key: &str) -> Outcome<T>
where
    T: TryFrom<OwnedVariant>,
    T::Error: std::error::Error + 'static,
{
    let value = told.get(key).ok_or_else(|| format!("nothing tells {key}"))?;
    Ok(value.clone().try_into()?)
}

impl Client {
    /// Proxies on `connection`; the service need not be there yet.
    pub async fn new(connection: Connection) -> Outcome<Self> {
        let embedder = EmbedderProxy::builder(&connection).cache_properties(CacheProperties::No);
        let manager = ManagerProxy::builder(&connection).cache_properties(CacheProperties::No);
        Ok(Self { embedder: embedder.build().await?, manager: manager.build().await?, connection })
    }

    /// A client on a new connection to `bus`.
    pub async fn on(bus: &PrivateBus) -> Outcome<Self> {
        Self::new(bus.connect().await?).await
    }

    /// The connection that both proxies share.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// `EmbedPacked`, with the reply's bytes as vectors and all that its dictionary has.
    pub async fn packed<S: AsRef<str>>(
        &self,
        texts: &[S],
        options: Options<'_>,
    ) -> zbus::Result<Packed> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        let asked = (&texts, options);
        let (bytes, rows, dimensions, info): (Vec<u8>, u32, u32, _) =
            self.embedder.inner().call("EmbedPacked", &asked).await?;
        assert_eq!(rows as usize, texts.len());
        assert_eq!(bytes.len(), rows as usize * dimensions as usize * 4);
        let numbers = numbers(&bytes);
        assert!(numbers.iter().all(|value| value.is_finite()), "a value is not finite");
        let vectors = numbers.chunks(dimensions as usize).map(<[f32]>::to_vec).collect();
        Ok(Packed { vectors, info })
    }

    /// Vectors of `texts` with no options.
    pub async fn vectors<S: AsRef<str>>(&self, texts: &[S]) -> Outcome<Vec<Vec<f32>>> {
        Ok(self.packed(texts, Options::new()).await?.vectors)
    }

    /// Calls `Embed` and goes on without the reply.
    pub fn embed_meanwhile(&self, text: &str) -> JoinHandle<zbus::Result<Vec<f64>>> {
        let (embedder, text) = (self.embedder.clone(), text.to_owned());
        tokio::spawn(async move { embedder.embed(&text).await })
    }

    /// Starts a job with these texts.
    pub async fn start_job(
        &self,
        source: impl AsFd,
        options: Options<'_>,
    ) -> Outcome<JobProxy<'static>> {
        let source = Fd::from(source.as_fd());
        let path = self.embedder.start_embed_from_fd(source, options).await?;
        job(&self.connection, path).await
    }

    /// A counter of `GetStatistics`.
    pub async fn counter(&self, name: &str) -> Outcome<u64> {
        value(&self.manager.get_statistics().await?, name)
    }

    /// How many calls failed in the way `kind`, from `GetStatistics`.
    pub async fn failures(&self, kind: &str) -> Outcome<u64> {
        let failures: HashMap<String, u64> =
            value(&self.manager.get_statistics().await?, "failures")?;
        Ok(failures.get(kind).copied().unwrap_or_default())
    }

    /// Asks for a counter until it's at least `least`: work inside the service has no signal of
    /// its own.
    pub async fn counted(&self, name: &str, least: u64) -> Outcome {
        assert_ne!(least, 0, "there is nothing to wait for");
        eventually(&format!("{name} to become {least}"), async || {
            Ok(self.counter(name).await? >= least)
        })
        .await
    }

    /// A value of `GetStatus`.
    pub async fn status<T>(&self, key: &str) -> Outcome<T>
    where
        T: TryFrom<OwnedVariant>,
        T::Error: std::error::Error + 'static,
    {
        value(&self.manager.get_status().await?, key)
    }

    /// The workers of `GetStatus`.
    pub async fn workers(&self) -> Outcome<Vec<Told>> {
        self.status("workers").await
    }
}

/// A job that was started.
pub async fn job(connection: &Connection, path: OwnedObjectPath) -> Outcome<JobProxy<'static>> {
    let proxy = JobProxy::builder(connection).path(path);
    Ok(proxy.cache_properties(CacheProperties::No).build().await?)
}

/// A call of a method of the embedder.
pub fn call(method: &'static str) -> Builder<'static> {
    let call = Message::method_call(ROOT_PATH, method).interface(EMBEDDER_INTERFACE);
    call.destination(BUS_NAME)
}

/// The process of a worker.
pub fn pid(worker: &Told) -> Outcome<Pid> {
    Ok(Pid::from_raw(i32::try_from(value::<u32>(worker, "pid")?)?))
}

/// The refusal that a call must have ended with: its name is `expected`, and its message, which is
/// returned, is one sentence that says something.
pub fn refused<T>(result: zbus::Result<T>, expected: ErrorName) -> Outcome<String> {
    let error = match result {
        Ok(_) => return Err(format!("not refused, but {} was to be", expected.as_str()).into()),
        Err(error) => error,
    };
    let refusal =
        Error::from_reply(&error).ok_or_else(|| format!("not in the contract: {error}"))?;
    assert_eq!(refusal.name(), expected, "{}", refusal.message());
    assert!(refusal.message().split_whitespace().count() > 3, "{:?}", refusal.message());
    Ok(refusal.message().to_owned())
}
