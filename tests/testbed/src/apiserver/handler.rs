//! Handles a request: authentication, faults, authorization, execution.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::accept::Form;
use super::answer::{Answer, Rendered};
use super::authorizer;
use super::control;
use super::deletion::options::DeleteOptions;
use super::discovery;
use super::error::ApiError;
use super::faults::Action;
use super::identity::User;
use super::kinds::STATUS_VERBS;
use super::list::{self, ListOptions};
use super::patch::Patch;
use super::query::Query;
use super::requests::Asked;
use super::review;
use super::route::{self, Route, Target};
use super::rules::create::undecodable;
use super::selector::Selector;
use super::shared::Shared;
use super::watch::{Watch, WatchOptions};
use super::writes::{self, Writer};

/// A request with its body.
#[derive(Debug)]
pub struct Call {
    /// The number of the connection.
    pub connection: u64,
    /// HTTP method.
    pub method: Method,
    /// The path, still encoded.
    pub path: String,
    pub query: String,
    /// The Authorization header.
    pub authorization: Option<String>,
    /// The Accept header.
    pub accept: String,
    pub content_type: String,
    pub body: Bytes,
}

/// Result of a request.
#[derive(Debug)]
pub enum Reply {
    /// An answer.
    Done(Rendered),
    Refused(ApiError),
    /// A stream.
    Watch(Box<Watch>),
    /// The connection is closed without a word.
    Lost,
}

impl Reply {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Done(answer) => Some(answer.code),
            Self::Refused(error) => Some(error.code),
            Self::Watch(_) => Some(200),
            Self::Lost => None,
        }
    }
}

/// Handles one request and notes it.
pub async fn handle(shared: &Arc<Shared>, call: Call) -> Reply {
    let user = User::of(call.authorization.as_deref());
    let route = route::parse(&shared.store().served, &call.path);
    let query = Query::parse(&call.query);
    let asked = asked(&call, &route, &query, user.as_ref());
    if let Ok(Route::Testbed(what)) = &route {
        return control::handle(shared, &call, what)
            .and_then(|answer| answer.render(Form::PLAIN))
            .map_or_else(Reply::Refused, Reply::Done);
    }
    shared.requests.witnessed(&asked, &call.body, None);
    let fault = meet(shared, &asked).await;
    let reply = match fault {
        Some(Action::Refuse) => Reply::Lost,
        Some(Action::LoseKey) => Reply::Refused(ApiError::lost_key(&asked.verb)),
        Some(Action::Status { code, retry_after }) => Reply::Refused(ApiError::injected(code, retry_after)),
        fault => {
            let answered = answer(shared, user, route, &query, &asked, &call).await;
            let reply = answered.unwrap_or_else(Reply::Refused);
            shared.requests.witnessed(&asked, &call.body, reply.code());
            match (fault, reply) {
                (Some(Action::LoseResponse), Reply::Done(_) | Reply::Watch(_)) => Reply::Lost,
                (_, reply) => reply,
            }
        }
    };
    let code = reply.code();
    shared.requests.note(asked, call.connection, code);
    reply
}

/// The fault that decides about a request; delays have passed by then.
async fn meet(shared: &Shared, asked: &Asked) -> Option<Action> {
    // Leases have a priority level of their own.
    if asked.resource != "leases" && shared.request_limit.refuses(&asked.user) {
        return Some(Action::Status {
            code: 429,
            retry_after: Some(1),
        });
    }
    let mut fault = shared.faults.for_request(asked);
    if let Some(Action::Delay { millis }) = fault {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        fault = None;
    }
    fault
}

fn asked(call: &Call, route: &Result<Route, ApiError>, query: &Query, user: Option<&User>) -> Asked {
    let path = if call.query.is_empty() {
        call.path.clone()
    } else {
        format!("{}?{}", call.path, call.query)
    };
    let user = user.map(User::name).unwrap_or_default();
    match route {
        Ok(Route::Objects(target)) => Asked {
            verb: verb(&call.method, target, query)
                .unwrap_or(call.method.as_str())
                .to_owned(),
            resource: target.resource(),
            namespace: target.namespace.clone(),
            name: target.name.clone(),
            path,
            user,
        },
        _ => Asked {
            verb: call.method.as_str().to_lowercase(),
            path,
            user,
            ..Asked::default()
        },
    }
}

fn verb(method: &Method, target: &Target, query: &Query) -> Option<&'static str> {
    let one = !target.name.is_empty();
    match (method, one) {
        (&Method::GET, true) => Some("get"),
        (&Method::GET, false) if query.flag("watch").ok().flatten() == Some(true) => Some("watch"),
        (&Method::GET, false) => Some("list"),
        (&Method::POST, false) => Some("create"),
        (&Method::PUT, true) => Some("update"),
        (&Method::PATCH, true) => Some("patch"),
        (&Method::DELETE, true) => Some("delete"),
        (&Method::DELETE, false) => Some("deletecollection"),
        _ => None,
    }
}

async fn answer(
    shared: &Arc<Shared>,
    user: Option<User>,
    route: Result<Route, ApiError>,
    query: &Query,
    asked: &Asked,
    call: &Call,
) -> Result<Reply, ApiError> {
    let user = user.ok_or_else(ApiError::unauthorized)?;
    let open = matches!(route, Ok(Route::Health | Route::Version));
    let answer = match route {
        Ok(Route::Objects(target)) => return objects(shared, &user, &target, query, asked, call).await,
        _ if user == User::Anonymous && !open => {
            return Err(ApiError::forbidden_path(&user.name(), &asked.verb, &call.path));
        }
        Ok(Route::Health) => Answer::ok(),
        Ok(Route::Version) => Answer::json(200, &discovery::version()),
        Ok(Route::Discovery(path)) => discovery::answer(&shared.store().served, path, &call.accept)?,
        Ok(Route::AccessReview) => review::answer(&shared.store(), &user, json_body(call, None)?)?,
        Ok(Route::Testbed(_)) => return Err(ApiError::no_such_path()),
        Err(error) => return Err(error),
    };
    answer.render(Form::PLAIN).map(Reply::Done)
}

async fn objects(
    shared: &Arc<Shared>,
    user: &User,
    target: &Target,
    query: &Query,
    asked: &Asked,
    call: &Call,
) -> Result<Reply, ApiError> {
    let verb = verb(&call.method, target, query).ok_or_else(ApiError::method_not_allowed)?;
    check_subresource(verb, target)?;
    let selector = Selector::parse(target.kind, query.get("fieldSelector").unwrap_or_default())?;
    authorizer::authorize(&shared.store(), user, verb, target, &selector)?;
    query.check_served()?;
    let form = Form::parse(&call.accept)?;
    let writer = Writer {
        user,
        now: shared.now(),
    };
    let answer = match verb {
        "list" => {
            let options = ListOptions::parse(query, selector)?;
            let page = list::page(&shared.store(), target.kind, &target.prefix(), &options)?;
            Answer::list(target.kind, page)
        }
        "watch" => {
            let options = WatchOptions::parse(query, selector)?;
            return Ok(Reply::Watch(Box::new(Watch::start(
                shared,
                asked.clone(),
                target,
                form,
                options,
            ))));
        }
        "get" => get(shared, target)?,
        "create" => writes::create(&mut shared.store(), &writer, target, json_body(call, Some(target))?)?,
        "update" => writes::replace(&mut shared.store(), &writer, target, json_body(call, Some(target))?)?,
        "patch" => {
            let patch = Patch::parse(target.kind, &call.content_type, &call.body)?;
            writes::patch(&mut shared.store(), &writer, target, &patch)?
        }
        "delete" => writes::delete(&mut shared.store(), &writer, target, &DeleteOptions::parse(&call.body)?)?,
        _ => return Err(ApiError::method_not_allowed()),
    };
    answer.render(form).map(Reply::Done)
}

fn get(shared: &Shared, target: &Target) -> Result<Answer, ApiError> {
    let store = shared.store();
    let object = store.get(target.kind, &target.key());
    object
        .map(|object| Answer::object(200, target.kind, object))
        .ok_or_else(|| ApiError::not_found(target.kind, &target.name))
}

fn check_subresource(verb: &str, target: &Target) -> Result<(), ApiError> {
    if target.subresource.is_empty() {
        return Ok(());
    }
    match target.subresource.as_str() {
        "status" if target.kind.status && STATUS_VERBS.contains(&verb) => Ok(()),
        "status" if target.kind.status => Err(ApiError::method_not_allowed()),
        _ if target.kind.custom => Err(ApiError::no_such_path()),
        _ => Err(ApiError::no_such_resource()),
    }
}

fn json_body(call: &Call, target: Option<&Target>) -> Result<Value, ApiError> {
    let media = call.content_type.split(';').next().unwrap_or_default().trim();
    if !matches!(media, "" | "application/json") {
        return Err(ApiError::unsupported_media("application/json"));
    }
    serde_json::from_slice(&call.body).map_err(|error| match target {
        Some(target) => undecodable(target.kind, &error.to_string()),
        None => ApiError::bad_request(error.to_string()),
    })
}
