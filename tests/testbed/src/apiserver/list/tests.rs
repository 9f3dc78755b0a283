use super::*;
use crate::apiserver::accept::Form;
use crate::apiserver::encode;
use crate::apiserver::kinds;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as URL_SAFE;
use serde_json::{Value, json};

fn maps() -> &'static Kind {
    kinds::find("", "v1", "configmaps").unwrap()
}

fn store() -> Store {
    let mut store = Store::new(100, 100);
    for name in ["a", "b", "c"] {
        let object = json!({ "metadata": { "name": name, "labels": { "name": name } } });
        store.put(maps(), &maps().key("ns", name), object);
    }
    store
}

fn list(store: &Store, query: &str) -> Result<Value, ApiError> {
    let query = Query::parse(query);
    let labels = query.get("labelSelector").unwrap_or_default();
    let options = ListOptions::parse(&query, Selector::parse(maps(), labels, "")?)?;
    let page = page(store, maps(), "ns/", &options)?;
    Ok(serde_json::from_slice(&encode::list(Form::PLAIN, maps(), &page)?).unwrap())
}

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

#[test]
fn pages_show_the_state_of_the_first_one() {
    let mut store = store();
    let first = list(&store, "limit=2").unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    store.remove(maps(), "ns/c");
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = list(&store, &format!("limit=2&continue={token}")).unwrap();
    assert_eq!(names(&second), ["c"]);
    assert_eq!(second["metadata"], json!({ "resourceVersion": "103" }));
}

#[test]
fn a_token_is_what_kubernetes_writes_and_how_much_was_seen() {
    let first = list(&store(), "limit=2").unwrap();
    let bytes = URL_SAFE
        .decode(first["metadata"]["continue"].as_str().unwrap())
        .unwrap();
    let token: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        token,
        json!({ "v": "meta.k8s.io/v1", "rv": 103, "start": "/b\u{0}", "seen": 2 })
    );
}

#[test]
fn expired_token_has_a_new_one_that_continues_inconsistently() {
    let mut store = store();
    let first = list(&store, "limit=2").unwrap();
    store.put(maps(), "ns/d", json!({ "metadata": { "name": "d" } }));
    store.compact();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let error = list(&store, &format!("continue={token}")).unwrap_err();
    assert_eq!((error.code, error.reason), (410, "Expired"));
    let status = error.to_status();
    let fresh = status["metadata"]["continue"].as_str().unwrap();
    assert_eq!(names(&list(&store, &format!("continue={fresh}")).unwrap()), ["c", "d"]);
}

#[test]
fn the_limit_is_ignored_at_version_zero_and_the_past_is_exact_with_a_limit() {
    let store = store();
    assert_eq!(
        names(&list(&store, "limit=1&resourceVersion=0").unwrap()),
        ["a", "b", "c"]
    );
    assert_eq!(names(&list(&store, "limit=5&resourceVersion=101").unwrap()), ["a"]);
    assert_eq!(
        names(&list(&store, "limit=5&resourceVersion=101&resourceVersionMatch=NotOlderThan").unwrap()),
        ["a", "b", "c"]
    );
    assert_eq!(
        names(&list(&store, "resourceVersion=102&resourceVersionMatch=Exact").unwrap()),
        ["a", "b"]
    );
    assert_eq!(
        list(&store, "resourceVersion=99&resourceVersionMatch=Exact")
            .unwrap_err()
            .code,
        410
    );
}

#[test]
fn a_selector_hides_how_many_remain() {
    let page = list(&store(), "limit=1&labelSelector=name").unwrap();
    assert_eq!(page["metadata"].get("remainingItemCount"), None);
    assert!(page["metadata"].get("continue").is_some());
    let empty = list(&store(), "labelSelector=name%3Dz").unwrap();
    assert_eq!(empty["items"], json!([]));
}

#[test]
fn contradictions_are_refused() {
    for (query, code) in [
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422),
        ("sendInitialEvents=true", 422),
        ("resourceVersion=x", 400),
        ("continue=%21", 400),
        ("continue=e30&resourceVersion=5", 400),
    ] {
        assert_eq!(list(&store(), query).unwrap_err().code, code, "{query}");
    }
}

#[test]
fn items_have_no_kind() {
    let all = list(&store(), "").unwrap();
    assert_eq!(all["kind"], "ConfigMapList");
    assert_eq!(all["items"][0].get("kind"), None);
}
