module example.com/consumer

go 1.26.0

require belljar v0.0.0

require (
	go.yaml.in/yaml/v4 v4.0.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace belljar => ../..
