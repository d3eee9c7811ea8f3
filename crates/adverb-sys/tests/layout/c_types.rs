//! The translation of types from Rust to C.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::vec;

use adverb_sys::layout::{CDeclaration, Item, Record, items};

/// The C names of the types of fields and functions.
pub(crate) struct CTypes {
    names: BTreeMap<&'static str, String>,
    anonymous_union: BTreeMap<&'static str, &'static Record>,
}

impl CTypes {
    pub(crate) fn new() -> Self {
        // Zero must be a valid value of each type, because the `zeroed` function of each record depends on it.
        let names = [
            ("__be16", "__be16"),
            ("__be32", "__be32"),
            ("__be64", "__be64"),
            ("c_char", "char"),
            ("c_int", "int"),
            ("c_uint", "unsigned int"),
            ("c_void", "void"),
            ("pthread_cond_t", "pthread_cond_t"),
            ("pthread_mutex_t", "pthread_mutex_t"),
            ("size_t", "size_t"),
            ("sockaddr", "struct sockaddr"),
            ("sockaddr_in", "struct sockaddr_in"),
            ("sockaddr_in6", "struct sockaddr_in6"),
            ("sockaddr_storage", "struct sockaddr_storage"),
            ("socklen_t", "socklen_t"),
            ("ssize_t", "ssize_t"),
            ("timespec", "struct timespec"),
            ("u16", "uint16_t"),
            ("u32", "uint32_t"),
            ("u64", "uint64_t"),
            ("u8", "uint8_t"),
        ];
        let mut names: BTreeMap<_, _> = names.into_iter().map(|(rust, c)| (rust, c.to_owned())).collect();
        let mut anonymous_union = BTreeMap::new();
        for item in items() {
            match item {
                Item::Record(record) if matches!(record.declaration, CDeclaration::AnonymousIn(_)) => {
                    anonymous_union.insert(record.name, record);
                }
                Item::Record(record) => {
                    names.insert(record.name, c_name(record));
                }
                Item::Opaque { name } => {
                    names.insert(name, format!("struct {name}"));
                }
                Item::Enumeration { name, .. } => {
                    names.insert(name, format!("enum {name}"));
                }
                Item::Constant { .. } | Item::Function { .. } => {}
            }
        }
        Self { names, anonymous_union }
    }

    /// Returns the union of this type, if it is anonymous in C.
    pub(crate) fn anonymous_union(&self, ty: &str) -> Option<&'static Record> {
        self.anonymous_union.get(ty).copied()
    }

    /// Translates a type from Rust source to C.
    pub(crate) fn translate(&self, source: &str) -> String {
        let mut tokens = tokens(source).into_iter().peekable();
        let ty = Type::parse(&mut tokens);
        assert_eq!(tokens.next(), None, "{source}");
        self.declare(&ty, String::new(), "")
    }

    /// Returns a C declaration of this declarator, built from the inside out.
    fn declare(&self, ty: &Type, declarator: String, qualifier: &str) -> String {
        match ty {
            Type::Name(name) => {
                let c = self.names.get(name.as_str());
                let c = c.unwrap_or_else(|| panic!("`{name}` is neither a C type nor zeroable"));
                format!("{qualifier}{c} {declarator}").trim_end().to_owned()
            }
            Type::Pointer { target, is_const } => {
                let target_qualifier = if *is_const { "const " } else { "" };
                self.declare(target, format!("*{qualifier}{declarator}"), target_qualifier)
            }
            Type::Array { element, length } => {
                self.declare(element, format!("{declarator}[{length}]"), qualifier)
            }
            Type::Function { arguments, result } => {
                let arguments: Vec<_> =
                    arguments.iter().map(|argument| self.declare(argument, String::new(), "")).collect();
                let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
                self.declare(result, format!("(*{declarator})({arguments})"), "")
            }
        }
    }
}

/// Returns the C name of a record.
pub(crate) fn c_name(record: &Record) -> String {
    match record.declaration {
        CDeclaration::Struct | CDeclaration::StructGrowingAtStart => format!("struct {}", record.name),
        CDeclaration::Union => format!("union {}", record.name),
        CDeclaration::TypeOf(path) => {
            let (outer, member) = path.split_once('.').unwrap();
            // One of the types with such members is a union.
            let kind = if outer == "ibv_gid" { "union" } else { "struct" };
            format!("__typeof__((({kind} {outer} *)0)->{member})")
        }
        CDeclaration::AnonymousIn(outer) => unreachable!("{} has no name in {outer}", record.name),
    }
}

/// A type that C can express.
enum Type {
    Name(String),
    Pointer { target: Box<Type>, is_const: bool },
    Array { element: Box<Type>, length: String },
    Function { arguments: Vec<Type>, result: Box<Type> },
}

type Tokens = Peekable<vec::IntoIter<String>>;

impl Type {
    fn parse(tokens: &mut Tokens) -> Self {
        let first = tokens.next().unwrap();
        match first.as_str() {
            "*" => {
                let is_const = tokens.next().unwrap() == "const";
                Self::Pointer { target: Box::new(Self::parse(tokens)), is_const }
            }
            "[" => {
                let element = Box::new(Self::parse(tokens));
                skip(tokens, &[";"]);
                let length = tokens.next().unwrap();
                skip(tokens, &["]"]);
                Self::Array { element, length }
            }
            // A function pointer is optional, because zero is not a valid function pointer.
            "Option" => {
                skip(tokens, &["<", "unsafe"]);
                let function = Self::parse_function(tokens);
                tokens.next_if(|token| token == ",");
                skip(tokens, &[">"]);
                function
            }
            "unsafe" => Self::parse_function(tokens),
            _ => Self::Name(first),
        }
    }

    fn parse_function(tokens: &mut Tokens) -> Self {
        skip(tokens, &["extern", "\"C\"", "fn", "("]);
        let mut arguments = Vec::new();
        while tokens.next_if(|token| token == ")").is_none() {
            let argument = Self::parse(tokens);
            // If a colon follows, the parsed type was the name of the argument.
            arguments.push(match tokens.next_if(|token| token == ":") {
                Some(_) => Self::parse(tokens),
                None => argument,
            });
            tokens.next_if(|token| token == ",");
        }
        let result = match tokens.next_if(|token| token == "->") {
            Some(_) => Self::parse(tokens),
            None => Self::Name("c_void".to_owned()),
        };
        Self::Function { arguments, result: Box::new(result) }
    }
}

fn skip(tokens: &mut Tokens, expected: &[&str]) {
    for expected in expected {
        assert_eq!(tokens.next().as_deref(), Some(*expected));
    }
}

/// Returns the tokens of a type. The compiler inserts spaces and line breaks at arbitrary places.
fn tokens(source: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut joins = false;
    for c in source.chars() {
        let is_word = c.is_alphanumeric() || c == '_' || c == '"';
        let is_arrow = c == '>' && tokens.last().is_some_and(|last| last == "-");
        if c.is_whitespace() {
            joins = false;
        } else if is_arrow || (is_word && joins) {
            tokens.last_mut().unwrap().push(c);
            joins = is_word;
        } else {
            tokens.push(c.to_string());
            joins = is_word;
        }
    }
    tokens
}
