//! Which devices a provider gets, and the precision that it is asked for.

use op_dbus_daemon::service::{candidates, host};
use op_dbus_daemon::settings::{Devices, Loaded, Precision, Provider};

/// The devices that the service gives `provider`: `gpu_device` names those of what is asked for, and a fallback on
/// others has its first.
pub fn given(loaded: &Loaded, provider: Provider) -> Devices {
    let loaded = naming(loaded, provider);
    match host(provider, &loaded, None) {
        Ok(host) if host.devices.is_empty() => Devices::All,
        Ok(host) => Devices::List(host.devices),
        Err(_) => loaded.settings.gpu_device,
    }
}

/// The precision that the service asks `provider` for: `precision` is that of what is asked for, and a fallback may be
/// left to do as it does.
pub fn precision(loaded: &Loaded, provider: Provider) -> Precision {
    let loaded = naming(loaded, provider);
    let asked_for = loaded.settings.precision;
    host(provider, &loaded, None).map_or(asked_for, |host| host.precision(&loaded.settings))
}

/// Settings that name `provider`: where these do not they are taken as if they asked for it.
fn naming(loaded: &Loaded, provider: Provider) -> Loaded {
    let mut loaded = loaded.clone();
    if !candidates(&loaded.settings).contains(&provider) {
        loaded.settings.execution_provider = provider;
    }
    // It counts whether or not the libraries are there by now.
    loaded.settings.runtime.get_or_insert_default();
    loaded
}

#[cfg(test)]
mod tests {
    use op_dbus_daemon::settings::{Settings, Sources};

    use super::*;

    #[test]
    fn a_fallback_is_not_looked_at_by_the_numbers_of_another() {
        let given_by = |asked_for, numbers: &str, provider| {
            let mut loaded = Settings::load(&Sources::under("/nowhere")).unwrap();
            loaded.settings.execution_provider = asked_for;
            loaded.settings.gpu_device = numbers.parse().unwrap();
            loaded.settings.fallback = vec![Provider::Cuda, Provider::Remote, Provider::Cpu];
            given(&loaded, provider).to_string()
        };
        assert_eq!(given_by(Provider::Remote, "0,1,2", Provider::Cuda), "0");
        assert_eq!(given_by(Provider::TensorRt, "1,2", Provider::Cuda), "1,2", "the same cards");
        assert_eq!(given_by(Provider::Auto, "1", Provider::Cuda), "1");
        assert_eq!(given_by(Provider::Remote, "all", Provider::Cuda), "all");
        assert_eq!(given_by(Provider::Remote, "1", Provider::WebGpu), "1", "if it were asked for");
    }
}
