package belljar

//go:generate go run ./internal/gen
