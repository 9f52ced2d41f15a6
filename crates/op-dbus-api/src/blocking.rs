//! The proxies for programs without an event loop: each method drives its call until the reply is here.

use zbus::proxy::{Builder, CacheProperties, Defaults};
use zbus::{Connection, ObjectPath};

use crate::{
    EmbedderProxy, EmbedderProxyBlocking, JobProxy, JobProxyBlocking, ManagerProxy,
    ManagerProxyBlocking,
};

/// Declares an interface once, for both kinds of programs: as `zbus` has it, and blocking.
macro_rules! both {
    ($proxy:ident, $blocking:ident: $($interface:tt)*) => {
        $($interface)*
        $crate::blocking::blocking! { $proxy, $blocking: $($interface)* }
    };
}
pub(crate) use both;

/// The blocking proxy of an interface.
macro_rules! blocking {
    (
        $proxy:ident, $blocking:ident:
        $(#[doc = $doc:literal])*
        #[proxy($($names:tt)*)]
        pub trait $interface:ident { $($members:tt)* }
    ) => {
        $(#[doc = $doc])*
        ///
        #[doc = concat!("[`", stringify!($proxy), "`] for programs without an event loop.")]
        /// Methods wait for the reply and panic in asynchronous code, as `zbus::block_on` does.
        /// A property is asked for whenever it is read. Threads may share a proxy.
        #[derive(Clone, Debug)]
        pub struct $blocking($proxy<'static>);

        impl $blocking {
            /// The proxy behind this one, which has the signals as well.
            pub fn proxy(&self) -> &$proxy<'static> {
                &self.0
            }

            $crate::blocking::members! { $($members)* }
        }

        impl From<$proxy<'static>> for $blocking {
            /// Properties are read as `proxy` was built to: out of a cache unless it was told not to,
            /// which nobody keeps up to date between the calls of a program without an event loop.
            fn from(proxy: $proxy<'static>) -> Self {
                Self(proxy)
            }
        }
    };
}
pub(crate) use blocking;

/// The members of an interface, one after the other. A signal is none that a call waits for.
macro_rules! members {
    () => {};
    (
        $(#[doc = $doc:literal])*
        #[zbus(signal)]
        fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> zbus::Result<()>;
        $($others:tt)*
    ) => {
        $crate::blocking::members! { $($others)* }
    };
    (
        $(#[doc = $doc:literal])*
        $(#[zbus(property $($how:tt)*)])?
        fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> zbus::Result<$reply:ty>;
        $($others:tt)*
    ) => {
        $(#[doc = $doc])*
        pub fn $name(&self $(, $argument: $type)*) -> zbus::Result<$reply> {
            zbus::block_on(self.0.$name($($argument),*))
        }

        $crate::blocking::members! { $($others)* }
    };
}
pub(crate) use members;

impl EmbedderProxyBlocking {
    /// A proxy on `connection`, which is to the bus or [direct](crate::direct_blocking).
    ///
    /// # Errors
    /// Those of `zbus`; the service need not be there yet.
    pub fn new(connection: &Connection) -> zbus::Result<Self> {
        built(EmbedderProxy::builder(connection)).map(Self::from)
    }
}

impl ManagerProxyBlocking {
    /// A proxy on `connection`, which is to the bus.
    ///
    /// # Errors
    /// Those of `zbus`; the service need not be there yet.
    pub fn new(connection: &Connection) -> zbus::Result<Self> {
        built(ManagerProxy::builder(connection)).map(Self::from)
    }
}

impl JobProxyBlocking {
    /// A proxy on `connection`, which is to the bus, for the job of this path.
    ///
    /// # Errors
    /// Those of `zbus`, for what is no path as well; a job that is not there is told by the first call.
    pub fn new(
        connection: &Connection,
        path: impl TryInto<ObjectPath<'static>, Error: Into<zbus::Error>>,
    ) -> zbus::Result<Self> {
        let path = path.try_into().map_err(Into::into)?;
        built(JobProxy::builder(connection).path(path)).map(Self::from)
    }
}

/// Builds a proxy without a cache: between calls nobody reads what would keep it up to date.
fn built<P>(builder: Builder<'static, P>) -> zbus::Result<P>
where
    P: From<zbus::Proxy<'static>> + Defaults,
{
    zbus::block_on(builder.cache_properties(CacheProperties::No).build())
}
