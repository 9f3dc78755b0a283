use super::*;
use crate::apiserver::kinds;
use serde_json::json;

#[test]
fn a_grace_shortened_into_the_past_ends_now_and_is_stored_as_one() {
    let pods = kinds::find("", "v1", "pods").unwrap();
    let delete = |pod: &Value, grace, now| {
        let options = DeleteOptions {
            grace,
            ..DeleteOptions::default()
        };
        match decide(pods, pod, &options, now) {
            Outcome::Held(pod) => pod,
            other => panic!("not held: {other:?}"),
        }
    };
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let pod = json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "n" }, "status": { "phase": "Running" } });
    let first = delete(&pod, None, now);
    let late = object::shifted(now, 20);
    let second = delete(&first, Some(3), late);
    assert_eq!(
        (object::deletion_time(&second), object::deletion_grace(&second)),
        (Some(late), Some(1))
    );
}
