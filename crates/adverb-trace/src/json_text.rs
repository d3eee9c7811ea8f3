//! A writer of JSON text.

use std::fmt::{self, Write};

/// JSON text that is appended to a buffer. The caller keeps the order of keys, values and brackets right.
#[derive(Default)]
pub(crate) struct JsonText {
    text: String,
    /// Whether the next key or value needs a comma before it.
    needs_comma: bool,
}

impl JsonText {
    /// Passes the text to `write` and clears the buffer.
    pub(crate) fn take(&mut self, write: impl FnOnce(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        let result = write(self.text.as_bytes());
        self.text.clear();
        self.needs_comma = false;
        result
    }

    pub(crate) fn begin_object(&mut self) -> &mut JsonText {
        self.begin('{')
    }

    pub(crate) fn end_object(&mut self) -> &mut JsonText {
        self.end('}')
    }

    pub(crate) fn begin_array(&mut self) -> &mut JsonText {
        self.begin('[')
    }

    pub(crate) fn end_array(&mut self) -> &mut JsonText {
        self.end(']')
    }

    /// Appends a key. Its value must follow.
    pub(crate) fn key(&mut self, key: &str) -> &mut JsonText {
        self.append_comma();
        self.text.push('"');
        self.text.push_str(key);
        self.text.push_str("\":");
        self.needs_comma = false;
        self
    }

    /// Appends a value.
    pub(crate) fn value(&mut self, value: impl JsonValue) -> &mut JsonText {
        self.append_comma();
        value.append_to(&mut self.text);
        self.needs_comma = true;
        self
    }

    /// Appends a key and its value.
    pub(crate) fn field(&mut self, key: &str, value: impl JsonValue) -> &mut JsonText {
        self.key(key).value(value)
    }

    /// Appends a key and its value, if there is a value.
    pub(crate) fn optional(&mut self, key: &str, value: Option<impl JsonValue>) -> &mut JsonText {
        match value {
            Some(value) => self.field(key, value),
            None => self,
        }
    }

    /// Appends a comma, if one is needed.
    fn append_comma(&mut self) {
        if self.needs_comma {
            self.text.push(',');
        }
    }

    fn begin(&mut self, bracket: char) -> &mut JsonText {
        self.append_comma();
        self.text.push(bracket);
        self.needs_comma = false;
        self
    }

    fn end(&mut self, bracket: char) -> &mut JsonText {
        self.text.push(bracket);
        self.needs_comma = true;
        self
    }
}

/// A value that JSON can represent.
pub(crate) trait JsonValue {
    fn append_to(self, text: &mut String);
}

/// A number of up to 64 bits, as a string of hexadecimal digits: readers with floating-point numbers keep only 53 bits.
pub(crate) struct Hex(pub(crate) u64);

/// The text of a value, as a string.
pub(crate) struct Text<T>(pub(crate) T);

/// Nanoseconds as a number of microseconds.
pub(crate) struct Micros(pub(crate) u64);

impl JsonValue for &str {
    fn append_to(self, text: &mut String) {
        Text(self).append_to(text);
    }
}

impl JsonValue for bool {
    fn append_to(self, text: &mut String) {
        text.push_str(if self { "true" } else { "false" });
    }
}

impl<T: JsonValue> JsonValue for Option<T> {
    fn append_to(self, text: &mut String) {
        match self {
            Some(value) => value.append_to(text),
            None => text.push_str("null"),
        }
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl JsonValue for $type {
            fn append_to(self, text: &mut String) {
                // Writing to a string doesn't fail.
                _ = write!(text, "{self}");
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64 usize);

impl JsonValue for Hex {
    fn append_to(self, text: &mut String) {
        _ = write!(text, "\"{:#x}\"", self.0);
    }
}

impl JsonValue for Micros {
    fn append_to(self, text: &mut String) {
        _ = write!(text, "{}.{:03}", self.0 / 1000, self.0 % 1000);
    }
}

impl<T: fmt::Display> JsonValue for Text<T> {
    fn append_to(self, text: &mut String) {
        text.push('"');
        _ = write!(Escape(text), "{}", self.0);
        text.push('"');
    }
}

/// A writer that escapes the characters that a JSON string can't contain.
struct Escape<'a>(&'a mut String);

impl fmt::Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
            let (plain, special) = rest.split_at(at);
            self.0.push_str(plain);
            let mut chars = special.chars();
            match chars.next() {
                Some(c @ ('"' | '\\')) => self.0.extend(['\\', c]),
                Some(c) => write!(self.0, "\\u{:04x}", u32::from(c))?,
                None => {}
            }
            rest = chars.as_str();
        }
        self.0.push_str(rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_round_trips() {
        let all: String =
            (0..0x300).chain(0x2020..0x2030).chain([0xffff, 0x1_f600]).filter_map(char::from_u32).collect();
        let mut json = JsonText::default();
        json.begin_object().field("text", all.as_str()).end_object();
        let parsed: serde_json::Value = serde_json::from_str(&json.text).unwrap();
        assert_eq!(parsed["text"], all.as_str());
    }

    #[test]
    fn commas_separate_keys_and_values_at_every_depth() {
        let mut json = JsonText::default();
        json.begin_object().field("a", 1_u32).key("b").begin_array().value(2_u8).begin_object().end_object();
        json.begin_array().value(true).value(Hex(u64::MAX)).end_array().end_array();
        json.optional("absent", None::<u32>).field("c", Micros(1_000_007)).end_object();
        assert_eq!(json.text, r#"{"a":1,"b":[2,{},[true,"0xffffffffffffffff"]],"c":1000.007}"#);
    }

    #[test]
    fn taken_text_leaves_an_empty_buffer() {
        let mut json = JsonText::default();
        for _ in 0..2 {
            json.value(7_u32);
            json.take(|text| {
                assert_eq!(text, b"7");
                Ok(())
            })
            .unwrap();
        }
    }
}
