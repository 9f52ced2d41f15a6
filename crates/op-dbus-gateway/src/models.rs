//! Names of models: which of them a request may ask for, and what each stands for.

use op_dbus_api::State;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::bus::{Bus, Lease};
use crate::embed::Wanted;
use crate::input::no_zero;
use crate::refusal::Refusal;

/// The name for whatever is in force.
const DEFAULT: &str = "default";

/// The levels and their models, as the service told them last: they never change while a version of it runs, and
/// another version may take its place beside a gateway that goes on.
#[derive(Default)]
pub struct Models(Mutex<Vec<Level>>);

struct Level {
    name: String,
    model: String,
}

/// A model as `/v1/models` tells it.
pub struct Offered {
    id: String,
    model: String,
    dimensions: u64,
    max_input_tokens: u64,
}

impl Models {
    /// What a request must ask of the service to get the model `name`.
    ///
    /// # Errors
    /// 404 for a name that can't be asked for, as of a model that is imported and not in force; the sentence lists
    /// those that can. While no model serves the service itself refuses.
    pub async fn wanted(&self, bus: &Bus, name: Option<&str>) -> Result<Wanted, Refusal> {
        let Some(name) = name.filter(|name| *name != DEFAULT) else { return Ok(Wanted::default()) };
        if name.contains('\0') {
            return Err(no_zero("the model's name").about("model"));
        }
        let mut lease = bus.lease().await?;
        let embedder = lease.embedder().await?;
        // What is none of the levels that were told may be one of a service that came since.
        for is_told_anew in [false, true] {
            if is_told_anew || self.0.lock().is_empty() {
                // Each request asks itself: behind others it would wait for a service that hangs once for each.
                let levels = levels(&mut lease).await?;
                *self.0.lock() = levels;
            }
            if let Some(wanted) = self.0.lock().iter().find_map(|level| level.wanted(name)) {
                return Ok(wanted);
            }
            if lease.answer(embedder.model()).await? == name {
                return Ok(Wanted { model: Some(name.to_owned()), ..Wanted::default() });
            }
        }
        let status = status(&mut lease).await?;
        if may_come(&status, name) {
            return Ok(Wanted { model: Some(name.to_owned()), ..Wanted::default() });
        }
        Err(unknown(name, &offered_in(&status, &mut lease).await?))
    }

    /// Has the levels told anew for the next request: another model than a level's has answered for it.
    pub fn forget(&self) {
        self.0.lock().clear();
    }
}

impl Level {
    /// What must be asked for to get what is called `name`, if that is this level or its model.
    fn wanted(&self, name: &str) -> Option<Wanted> {
        let model = (self.model == name).then(|| self.model.clone());
        let is_this = model.is_some() || self.name == name;
        is_this.then(|| Wanted { level: Some(self.name.clone()), model, ..Wanted::default() })
    }
}

/// What is told of a name that can't be asked for.
pub fn unknown(name: &str, offered: &[Offered]) -> Refusal {
    let start: String = name.chars().take(80).collect();
    let ids: Vec<&str> = offered.iter().map(Offered::id).collect();
    let advice = match ids.is_empty() {
        true => "there is none now, as the service's status tells".to_owned(),
        false => format!("ask for one of {}", ids.join(", ")),
    };
    Refusal::no_model(format!("{start:?} is no model that can be asked for here; {advice}"))
}

/// What is told of a `refusal` of a level that was asked for by this name: where it can't be had at all, what can; how an
/// administrator would mend that is nothing for a client.
pub async fn refused(lease: &mut Lease, name: &str, refusal: Refusal) -> Refusal {
    match offered(lease).await {
        Ok(offered) if offered.iter().all(|model| model.id != name) => unknown(name, &offered),
        Ok(_) => refusal,
        // It was told what is wrong with the request, whatever is there by now.
        Err(_) if refusal.code() == "invalid_request" => refusal,
        Err(unanswered) => unanswered,
    }
}

async fn levels(lease: &mut Lease) -> Result<Vec<Level>, Refusal> {
    let manager = lease.manager().await?;
    let levels = lease.answer(manager.list_levels()).await?;
    let levels = levels.iter().map(op_dbus_api::json_object);
    let level = |level: Value| Level { name: text(&level, "name"), model: text(&level, "model") };
    Ok(levels.map(level).filter(|level| !level.model.is_empty()).collect())
}

/// What the service tells of itself.
///
/// # Errors
/// When it does not answer.
pub async fn status(lease: &mut Lease) -> Result<Value, Refusal> {
    let manager = lease.manager().await?;
    Ok(op_dbus_api::json_object(&lease.answer(manager.get_status()).await?))
}

/// Whether `name` may be the model that is to serve: the service tells an imported one when it serves, and a client that
/// was told 404 would not come again.
fn may_come(status: &Value, name: &str) -> bool {
    let serves_none = [State::Loading, State::Failed, State::Draining]
        .iter()
        .any(|state| status["state"] == state.as_str());
    let is_told =
        ["model", "level"].iter().any(|key| status[key].as_str().is_some_and(|it| !it.is_empty()));
    serves_none && !is_told || status["model"] == name
}

/// The names that can be asked for now: what is in force, and each level that is installed and has the dimensions that
/// the settings demand, by both its names. None where the vector level is `none`.
///
/// # Errors
/// When the service does not answer.
pub async fn offered(lease: &mut Lease) -> Result<Vec<Offered>, Refusal> {
    let status = status(lease).await?;
    offered_in(&status, lease).await
}

/// The same, of a service that has just told its status.
async fn offered_in(status: &Value, lease: &mut Lease) -> Result<Vec<Offered>, Refusal> {
    if status["state"] == State::Disabled.as_str() {
        return Ok(Vec::new());
    }
    let manager = lease.manager().await?;
    let levels = lease.answer(manager.list_levels()).await?;
    let settings = lease.answer(manager.get_settings()).await?;
    let mut settings = settings.iter().map(op_dbus_api::json_object);
    let expected = settings.find(|setting| setting["key"] == "expect_dimensions");
    // Else it is `any`.
    let expected = expected.and_then(|it| it["value"].as_str()?.parse::<u64>().ok());
    let offer = |id: &str, told: &Value| Offered {
        id: id.to_owned(),
        model: text(told, "model"),
        dimensions: told["dimensions"].as_u64().unwrap_or_default(),
        max_input_tokens: told["max_input_tokens"].as_u64().unwrap_or_default(),
    };
    let mut offered = Vec::new();
    let in_force = text(status, "model");
    if !in_force.is_empty() {
        offered.push(offer(DEFAULT, status));
        if text(status, "level").is_empty() {
            offered.push(offer(&in_force, status));
        }
    }
    for level in levels.iter().map(op_dbus_api::json_object) {
        let model = text(&level, "model");
        // The simulator serves its level whether the model is installed or not, and with dimensions of its own.
        let serves = !in_force.is_empty() && level["name"] == status["level"];
        let fits = expected.is_none_or(|expected| level["dimensions"] == expected);
        let served = serves || (level["installed"] == true && fits);
        if served && !model.is_empty() {
            offered.push(offer(&text(&level, "name"), &level));
            offered.push(offer(&model, &level));
        }
    }
    Ok(offered)
}

impl Offered {
    /// The name to ask for.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// As OpenAI's clients read it. When a model was made nobody here knows.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "model",
            "created": 0,
            "owned_by": "op-dbus",
            "model": self.model,
            "dimensions": self.dimensions,
            "max_input_tokens": self.max_input_tokens,
        })
    }
}

fn text(told: &Value, key: &str) -> String {
    told[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use futures_util::StreamExt;
    use tokio::sync::mpsc::unbounded_channel;
    use zbus::connection::Builder;
    use zbus::{Guid, MessageStream};

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_what_another_is_told() {
        let (services, mut asked) = unbounded_channel();
        let bus = Bus::new(Arc::new(move || {
            let (near, far) = UnixStream::pair().unwrap();
            services.send(far).unwrap();
            Builder::unix_stream(near).p2p()
        }));
        let models = Models::default();
        // It hears what it is asked, and says nothing.
        let silent = async {
            let mut services = Vec::new();
            while services.len() < 2 {
                let far = Builder::unix_stream(asked.recv().await.unwrap());
                let service = far.server(Guid::generate()).p2p().build().await.unwrap();
                let question = MessageStream::from(&service).next().await.unwrap().unwrap();
                assert_eq!(question.header().member().unwrap(), "ListLevels");
                services.push(service);
            }
        };
        tokio::select! {
            _ = models.wanted(&bus, Some("low")) => panic!("the first was answered"),
            _ = models.wanted(&bus, Some("low")) => panic!("the second was answered"),
            () = silent => {}
        }
    }

    #[test]
    fn a_name_may_come_only_while_the_service_tells_none() {
        let may = |state: &str, level: &str, model: &str| {
            may_come(&json!({ "state": state, "level": level, "model": model }), "own")
        };
        assert!(["loading", "failed", "draining"].iter().all(|state| may(state, "", "")));
        assert!(!may("loading", "low", ""), "a level's names are known");
        assert!(!may("failed", "", "other"), "it has lost its workers");
        assert!(!may("ready", "", "other") && !may("disabled", "none", ""));
        assert!(may("ready", "", "own"), "it came since");
    }
}
