//! SelfSubjectAccessReview: the rights of the user.

use serde_json::{Value, json};

use super::answer::Answer;
use super::authorizer;
use super::error::ApiError;
use super::identity::User;
use super::object::text;
use super::route::Target;
use super::selector::Selector;
use super::store::Store;

pub fn answer(store: &Store, user: &User, mut review: Value) -> Result<Answer, ApiError> {
    if !review.is_object() {
        return Err(ApiError::bad_request("a SelfSubjectAccessReview is an object"));
    }
    let (allowed, reason) = match review.pointer("/spec/resourceAttributes") {
        Some(wish) => decide(store, user, wish)?,
        None => (user.is_almighty(), String::new()),
    };
    review["kind"] = "SelfSubjectAccessReview".into();
    review["apiVersion"] = "authorization.k8s.io/v1".into();
    review["status"] = if reason.is_empty() {
        json!({ "allowed": allowed })
    } else {
        json!({ "allowed": allowed, "reason": reason })
    };
    Ok(Answer::json(201, &review))
}

fn decide(store: &Store, user: &User, wish: &Value) -> Result<(bool, String), ApiError> {
    if user.is_almighty() {
        return Ok((true, String::new()));
    }
    let (group, resource) = (text(wish, "/group"), text(wish, "/resource"));
    let mut served = store.served.all();
    let Some(kind) = served.find(|kind| kind.group == group && kind.resource == resource) else {
        return Ok((false, String::new()));
    };
    let target = Target {
        kind,
        namespace: text(wish, "/namespace").to_owned(),
        name: text(wish, "/name").to_owned(),
        subresource: text(wish, "/subresource").to_owned(),
    };
    let fields = Selector::parse(kind, text(wish, "/fieldSelector/rawSelector"))?;
    match authorizer::authorize(store, user, text(wish, "/verb"), &target, &fields) {
        Ok(()) => Ok((true, String::new())),
        Err(error) => Ok((false, error.message)),
    }
}
