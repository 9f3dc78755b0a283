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
        let object = json!({ "metadata": { "name": name, "namespace": "ns" } });
        store.put(maps(), &maps().key("ns", name), object);
    }
    store
}

fn list(store: &Store, query: &str) -> Result<Value, ApiError> {
    let query = Query::parse(query);
    query.check_served()?;
    let fields = query.get("fieldSelector").unwrap_or_default();
    let options = ListOptions::parse(&query, Selector::parse(maps(), fields)?)?;
    let page = page(store, maps(), "ns/", &options)?;
    Ok(serde_json::from_slice(&encode::list(Form::PLAIN, maps(), &page)?).unwrap())
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
fn contradictions_and_what_is_not_served_are_refused() {
    for (query, code) in [
        ("resourceVersion=5&resourceVersionMatch=Exact", 400),
        ("resourceVersion=5&limit=1", 400),
        ("resourceVersion=999", 504),
        ("labelSelector=name", 400),
        ("resourceVersion=x", 400),
        ("continue=%21", 400),
        ("continue=e30&resourceVersion=5", 400),
    ] {
        assert_eq!(list(&store(), query).unwrap_err().code, code, "{query}");
    }
}
